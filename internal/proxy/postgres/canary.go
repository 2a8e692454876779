package postgres

import (
	"fmt"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// canaryName is what application_name is set to, to hear that the server reports it.
const canaryName = "weir_canary"

// sendCanary demands of a new connection that the server reports what it must: weir follows
// its clients' settings, and how texts are to be read, by those reports. What a
// version promises is no proof, with forks, other poolers and gateways that speak the
// protocol. Where the report does not come, each session keeps its connection.
func sendCanary(b *backend) {
	p := b.p
	restore := b.startApp
	b.ask("SET application_name = "+quoteLiteral(canaryName), func(u *unit) {
		if b.app == canaryName || p.facts.silent || u.err != nil && u.err.Code == pgwire.CodeConnectionFailure {
			return
		}
		p.facts.silent = true
		p.l.srv.Log.Warn("the server does not report changes of settings: each session keeps its connection, and nothing is shared or grouped",
			"pool", p.key.String(), "server", p.facts.version, "error", fmt.Sprint(u.err))
	})
	b.ask("RESET application_name", func(*unit) { b.app = restore })
}

package postgres

import (
	"fmt"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// canaryName is a value for application_name, to test whether the server reports the change.
const canaryName = "weir_canary"

// sendCanary tests on a new connection that the server reports what it must: weir tracks
// its clients' settings, and how texts must be read, by those reports. The version
// is no proof, since forks, other poolers and gateways speak the
// protocol, too. If the report does not come, each session keeps its connection.
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

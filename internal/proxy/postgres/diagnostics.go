package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// diagnostics are the warnings that weir itself gives a client.
type diagnostics struct {
	c *client

	noticed map[string]bool // hints already complained of
}

// complain warns once per session about a hint that cannot be used.
func (dg *diagnostics) complain(bad []string) {
	c := dg.c
	amid := c.inflight > 0 || c.link != nil && c.link.Depth() > 0 // an answer, perhaps: the next one is told of
	for _, msg := range bad {
		c.l.BadHints++
		if amid || dg.noticed[msg] || len(dg.noticed) >= 32 {
			continue
		}
		if dg.noticed == nil {
			dg.noticed = make(map[string]bool)
		}
		dg.noticed[strings.Clone(msg)] = true
		c.s.Write(pgwire.AppendNotice(nil, &pgwire.Error{
			Severity: "WARNING", SeverityRaw: "WARNING", Code: "01000",
			Message: "weir ignores a hint: " + msg,
		}))
	}
}

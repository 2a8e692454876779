package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// hintWarnings are the warnings about hints that weir has given a client.
type hintWarnings struct {
	c *client

	given map[string]bool
}

// warn warns once per session about a hint that cannot be used; count says whether it also counts.
func (hw *hintWarnings) warn(bad []string, count bool) {
	c := hw.c
	amid := c.inflight > 0 || c.link != nil && c.link.Depth() > 0 // an answer, perhaps: the next one is told of
	for _, msg := range bad {
		if count {
			c.l.BadHints++
		}
		if amid || hw.given[msg] || len(hw.given) >= 32 {
			continue
		}
		if hw.given == nil {
			hw.given = make(map[string]bool)
		}
		hw.given[strings.Clone(msg)] = true
		c.s.Write(pgwire.AppendNotice(nil, &pgwire.Error{
			Severity: "WARNING", SeverityRaw: "WARNING", Code: "01000",
			Message: "weir ignores a hint: " + msg,
		}))
	}
}

package mysql

import "strings"

// hintWarnings are the warnings about a client's hints that weir has logged.
type hintWarnings struct {
	c *client

	given map[string]bool
}

// warn warns once per session about a hint that cannot be used. MySQL has no notices, so the warning
// goes to the log.
func (hw *hintWarnings) warn(bad []string) {
	c := hw.c
	for _, msg := range bad {
		c.l.BadHints++
		if hw.given[msg] || len(hw.given) >= 32 {
			continue
		}
		if hw.given == nil {
			hw.given = make(map[string]bool)
		}
		hw.given[strings.Clone(msg)] = true
		c.l.srv.Log.Warn("hint ignored", "client", c.addr, "user", c.p.key.user, "database", c.p.key.database, "hint", msg)
	}
}

package mysql

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// This file is about long texts, which are read away from the loop.

// maxScanned is the length of a text from which on it is read away from the loop:
// a megabyte takes some 10 ms, in which the loop would serve nobody. Such a text
// has no shape of its own.
const maxScanned = 256 << 10

// scan reads a text. It reports false if that happens elsewhere, and the command is
// to be looked at again afterwards.
func (c *client) scan(sql string) (info myscan.Statement, ready bool) {
	if len(sql) <= maxScanned {
		return myscan.Scan(sql, c.mode), true
	}
	if c.scanned != nil {
		info, c.scanned = *c.scanned, nil
		return info, true
	}
	c.probing = true
	l, mode, own := c.l, c.mode, strings.Clone(sql)
	l.srv.Background.Go(func() {
		info := myscan.Scan(own, mode)
		l.Post(func() {
			if !c.s.Closed && c.link != nil {
				c.scanned = &info
				c.goOn()
			}
		})
	})
	return info, false
}

package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file is about settings whose values only the server knows: a function has
// changed them, or the end of a transaction. And about settings that a session
// makes up, names in two parts: they exist until it ends, and whether they do can
// be seen, because one that was never heard of is NULL and any other is not. So a
// backend serves only those who have all of them.

// doubt has the server asked for settings when the client's backend is quiet.
func (sg *settings) doubt(names ...string) {
	for _, n := range names {
		if n != "application_name" && !slices.Contains(sg.unsure, n) {
			sg.unsure = append(sg.unsure, strings.Clone(n))
		}
	}
}

// doubtCustom has the server asked for those settings that exist, empty, even if
// the SET that made them was undone.
func (sg *settings) doubtCustom(sets []sqlscan.SetClause) {
	for i := range sets {
		if sqlscan.Custom(sets[i].Name) {
			sg.doubt(sets[i].Name)
		}
	}
}

// makesUp reports whether the transaction under way has made up a setting that stays in
// b's session, empty, when it is rolled back.
func (sg *settings) makesUp(b *backend) bool {
	return slices.ContainsFunc(sg.txSets, func(s sqlscan.SetClause) bool {
		_, has := b.set.Get(s.Name)
		return !has && sqlscan.Custom(s.Name)
	})
}

// doubtSets has the server asked for the settings that clauses are about.
func (sg *settings) doubtSets(b *backend, sets []sqlscan.SetClause) {
	for i := range sets {
		if s := &sets[i]; s.Name != "" {
			sg.doubt(s.Name)
		}
		if sets[i].All {
			for _, set := range []*session.Set{sg.c.set, b.set, sg.start} {
				for _, s := range set.List() {
					sg.doubt(s.Name)
				}
			}
		}
	}
}

// learn asks the linked backend for the settings in doubt.
func (sg *settings) learn() {
	c := sg.c
	b, names := c.link, sg.unsure
	sg.unsure = nil
	var sql strings.Builder
	sql.WriteString("SELECT")
	for i, n := range names {
		if i > 0 {
			sql.WriteByte(',')
		}
		sql.WriteString(" pg_catalog.current_setting(" + quoteLiteral(n) + ", true)")
	}
	b.ask(sql.String(), func(u *unit) {
		defer sg.calm(b)
		if u.err != nil || len(u.rows) != 1 {
			c.pins.add(pinSetConfig) // not for this user to see
			return
		}
		t := c.l.Settings
		for i, n := range names {
			if v := u.rows[0][i]; v == nil {
				c.set, b.set = t.Without(c.set, n), t.Without(b.set, n)
			} else {
				s := session.Setting{Name: n, Value: string(v), Literal: true}
				if !ascii(n) || !ascii(s.Value) {
					c.pins.add(pinSetConfig) // elsewhere it might read differently
				}
				c.set, b.set = t.With(c.set, s), t.With(b.set, s)
			}
		}
	}).columns = len(names)
}

// told returns what the server last reported of a setting, if it reports it.
func (b *backend) told(name string) (string, bool) {
	for n, v := range b.params {
		if strings.EqualFold(n, name) {
			return v, true
		}
	}
	return "", false
}

// madeUp reports whether a session in these settings has some that it made up.
func madeUp(set *session.Set) bool {
	for _, s := range set.List() {
		if sqlscan.Custom(s.Name) {
			return true
		}
	}
	return false
}

// serves reports whether the backend can be brought into the given settings: not
// where it has one that was made up and is not among them.
func (b *backend) serves(set *session.Set) bool {
	if b.set == set {
		return true
	}
	for _, s := range b.set.List() {
		if sqlscan.Custom(s.Name) {
			if _, ok := set.Get(s.Name); !ok {
				return false
			}
		}
	}
	return true
}

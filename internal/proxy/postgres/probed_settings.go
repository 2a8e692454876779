package postgres

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file is about settings whose values only the server knows, because a function or the end
// of a transaction has changed them, and about custom settings (names in two parts), which exist
// until the session ends. Whether they exist can be seen: a setting that was never set is NULL,
// any other is not. So a backend serves only clients that have all of its custom settings.

// doubt makes weir ask the server for settings when the client's backend is quiet.
func (sg *settings) doubt(names ...string) {
	for _, n := range names {
		if n != "application_name" && !slices.Contains(sg.unsure, n) {
			sg.unsure = append(sg.unsure, strings.Clone(n))
		}
	}
}

// doubtCustom makes weir ask for those custom settings that exist, empty, even if
// the SET that created them was undone.
func (sg *settings) doubtCustom(sets []sqlscan.SetClause) {
	for i := range sets {
		if sqlscan.Custom(sets[i].Name) {
			sg.doubt(sets[i].Name)
		}
	}
}

// makesUp reports whether the current transaction has created a custom setting that stays in
// b's session, empty, when it is rolled back.
func (sg *settings) makesUp(b *backend) bool {
	return slices.ContainsFunc(sg.txSets, func(s sqlscan.SetClause) bool {
		_, has := b.set.Get(s.Name)
		return !has && sqlscan.Custom(s.Name)
	})
}

// doubtSets makes weir ask for the settings that clauses are about.
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

// learn asks the linked backend for the settings in doubt, and which of them the session may
// not set. Such a setting was set by a function of another role; or not at all, if a SET has
// failed: then it has the server's default, and there is nothing to replay.
func (sg *settings) learn() {
	c := sg.c
	b, names := c.link, sg.unsure
	sg.unsure = nil
	free := b.p.freeSettings
	var sql strings.Builder
	sql.WriteString("SELECT")
	for i, n := range names {
		if i > 0 {
			sql.WriteByte(',')
		}
		sql.WriteString(" pg_catalog.current_setting(" + quoteLiteral(n) + ", true), ")
		if free[n] {
			sql.WriteString("'free'")
		} else {
			sql.WriteString(maySetSQL(n))
		}
	}
	b.ask(sql.String(), func(u *unit) {
		defer sg.calm(b)
		if u.err != nil || len(u.rows) != 1 {
			c.pins.add(pinSetConfig) // this user may not see it
			return
		}
		t := c.l.Settings
		for i, n := range names {
			v, may := u.rows[0][2*i], string(u.rows[0][2*i+1])
			if may == "free" {
				free.add(n)
			}
			_, replayed := c.set.Get(n)
			switch {
			case v == nil, may == "default" && !replayed:
				c.set, b.set = t.Without(c.set, n), t.Without(b.set, n)
			case may == "other" && !replayed:
				c.pins.add(pinSet)
			default:
				s := session.Setting{Name: n, Value: string(v), Literal: true}
				if !sqlscan.ASCII(n) || !sqlscan.ASCII(s.Value) {
					c.pins.add(pinSetConfig) // elsewhere it might be read differently
				}
				c.set, b.set = t.With(c.set, s), t.With(b.set, s)
			}
		}
	}).columns = 2 * len(names)
}

// maySetSQL asks whether a session may set a parameter: "free" if anybody may, "superuser"
// if this one may; if it may not, whether the parameter has its "default" or an "other"
// value. The view has no parameters that a session makes up, and none that only look like
// such, as is_superuser.
func maySetSQL(name string) string {
	unseen := "default"
	if sqlscan.Custom(name) {
		unseen = "free"
	}
	return maySetOwn + `pg_catalog.lower(` + quoteLiteral(name) + `)), '` + unseen + `')`
}

// maySetOwn is its beginning. Arrays are equal where both elements are NULL.
var maySetOwn = own(`coalesce((SELECT CASE WHEN s.context = 'user' THEN 'free'
 WHEN s.context = 'superuser' AND pg_catalog.current_setting('is_superuser') = 'on' THEN 'superuser'
 WHEN ARRAY[s.setting] = ARRAY[s.reset_val] THEN 'default' ELSE 'other' END
 FROM pg_catalog.pg_settings s WHERE pg_catalog.lower(s.name) = `)

// freeSettings are the names of settings that every session of a pool may set.
type freeSettings map[string]bool

// maxFreeSettings bounds the names, which clients choose.
const maxFreeSettings = 1000

func (f freeSettings) add(name string) {
	if len(f) >= maxFreeSettings {
		clear(f)
	}
	f[name] = true
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

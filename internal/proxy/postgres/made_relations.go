package postgres

import (
	"maps"
	"time"

	"github.com/weirdb/weir/internal/proxy/postgres/catalogue"
)

// This file keeps the relations that clients of weir have created since the catalogue was
// read, until it is read again.

// A madeRelation is a new relation whose effects are current.
type madeRelation struct {
	catalogue.NameEffects
	by    *client       // whose transaction may not have ended
	since time.Duration // when it ended
}

// unsettledFor is how long the transaction of a client that has left may still
// be committed.
const unsettledFor = 10 * time.Second

// add adds new relations to the current index and to those that are
// read before their transaction has ended.
func (f *dbCatalogue) add(c *client, list []catalogue.CreatedRelation) {
	if f.made == nil {
		f.made = make(map[string]madeRelation)
	}
	for _, n := range list {
		f.made[n.Name] = madeRelation{NameEffects: n.With(f.made[n.Name].NameEffects), by: c}
	}
	c.texts.makes = true
	f.index = f.index.With(f.relations())
	f.epoch++
}

// ended is called when c has no transaction any more that may create relations.
func (f *dbCatalogue) ended(c *client, at time.Duration) {
	c.texts.makes = false
	list := make(map[string]catalogue.NameEffects)
	for name, m := range f.made {
		if m.by == c {
			m.by, m.since = nil, at
			f.made[name] = m
			list[name] = m.NameEffects
		}
	}
	f.used, f.lookAt, f.grewAt = true, 0, f.l.Now
	f.onOtherLoops(func(g *dbCatalogue) {
		g.grewAt = g.l.Now
		if g.made == nil {
			g.made = make(map[string]madeRelation)
		}
		for name, d := range list {
			g.made[name] = madeRelation{NameEffects: d.With(g.made[name].NameEffects), since: g.l.Now}
		}
		g.index = g.index.With(g.relations())
		g.epoch++
		g.used, g.lookAt = true, 0
	})
}

// relations are the new relations, as an index has them.
func (f *dbCatalogue) relations() map[string]catalogue.NameEffects {
	list := make(map[string]catalogue.NameEffects, len(f.made))
	for name, m := range f.made {
		list[name] = m.NameEffects
	}
	return list
}

// onOtherLoops calls do with what the other loops know of the database.
func (f *dbCatalogue) onOtherLoops(do func(g *dbCatalogue)) {
	for _, l := range f.l.srv.Loops {
		if l == f.l {
			continue
		}
		l.Post(func() {
			if g := l.proofs[f.database]; g != nil {
				do(g)
			}
		})
	}
}

// known removes the new relations that are in an index read from sent on.
func (f *dbCatalogue) known(sent time.Duration) {
	maps.DeleteFunc(f.made, func(_ string, m madeRelation) bool { return m.by == nil && m.since < sent })
}

package catalogue

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// This file reads the server's catalogue backwards: from what changes a
// session (functions, and expressions that call them) to the names by which a
// statement reaches it. docs/design/006-proven-sharing.md says why that is
// complete.

// A node is an object of the catalogue, or one way to use it.
type node struct {
	kind nodeKind
	oid  string
}

type nodeKind byte

const (
	nodeRead     nodeKind = 'r' // a relation that is read
	nodeWrite    nodeKind = 'w' // a relation that is written, which includes reading it
	nodeFunc     nodeKind = 'f'
	nodeType     nodeKind = 't'
	nodeOperator nodeKind = 'o'
	nodeEvent    nodeKind = 'e' // an event trigger
	nodeAny      nodeKind = 'x' // something that any statement may reach without naming it
)

// A fact is what is known of a node.
type fact struct {
	name    string
	eff     sqlscan.Effect
	touches []string // settings
	asked   bool     // the server was asked what reaches it
}

// A routine is a function of a user.
type routine struct {
	node   node
	body   string // SQL or PL/pgSQL; "" if it has none that can be read
	writes bool
}

// A Reader gathers the facts of one database, step by step: Next returns a query, Feed takes
// its rows. It may run on any goroutine, on one at a time.
type Reader struct {
	trusted  []string // functions that the configuration trusts
	builtins *builtins

	stamp    string
	facts    map[node]*fact
	edges    map[node][]node // from a node to those that reach it
	routines []*routine
	step     int
	frontier []node
	err      error
}

// builtins are the functions of pg_catalog that have effects. They are taken to be the same in
// every database of a server: only a superuser can rename or drop one. Never changed.
type builtins struct {
	oids    string                    // as a list
	effects map[string]sqlscan.Effect // by OID
	named   map[string]sqlscan.Effect // by name
}

// newReader returns a reader, which asks for the server's functions if known is nil.
func newReader(trusted []string, known *builtins) *Reader {
	return &Reader{trusted: trusted, builtins: known, facts: make(map[node]*fact), edges: make(map[node][]node)}
}

// Next returns the next query, "" when everything is known.
func (r *Reader) Next() string {
	switch {
	case r.err != nil:
		return ""
	case r.builtins == nil:
		return quietly + builtinSQL
	case r.step == 0:
		return quietly + "SELECT 'stamp', (" + stampSQL + "), '', '', '', '', ''" + fmt.Sprintf(scanSQL, r.builtins.oids)
	}
	r.settleNames()
	r.frontier = r.frontier[:0]
	for n, f := range r.facts {
		if f.eff != 0 && !f.asked {
			f.asked = true
			r.frontier = append(r.frontier, n)
		}
	}
	if len(r.frontier) == 0 {
		return ""
	}
	kinds, oids := make([]string, len(r.frontier)), make([]string, len(r.frontier))
	for i, n := range r.frontier {
		kinds[i], oids[i] = string(rune(n.kind)), n.oid
	}
	return quietly + fmt.Sprintf(edgeSQL, strings.Join(kinds, ","), strings.Join(oids, ","))
}

const (
	builtinColumns = 2
	scanColumns    = 7
	edgeColumns    = 6
)

// Columns is how many columns the query has that Next gave.
func (r *Reader) Columns() int {
	switch {
	case r.builtins == nil:
		return builtinColumns
	case r.step == 0:
		return scanColumns
	}
	return edgeColumns
}

// Feed takes the rows of the query that Next gave.
func (r *Reader) Feed(rows [][][]byte) {
	if r.builtins == nil {
		r.builtins = readBuiltins(rows)
		return
	}
	r.step++
	for _, row := range rows {
		f := make([]string, scanColumns)
		for i := range min(len(f), len(row)) {
			f[i] = string(row[i])
		}
		if kinds := f[0] == "edge"; (kinds || f[0] == "tree") && f[1] == "" || kinds && f[3] == "" {
			r.err = fmt.Errorf("the catalogue has a %s of no kind", f[0])
			return
		}
		switch f[0] {
		case "stamp":
			r.stamp = f[1]
		case "func":
			r.function(f[1], f[2], f[3], f[4], f[5], f[6])
		case "config":
			for setting := range strings.SplitSeq(f[2], "\n") {
				name, _, _ := strings.Cut(setting, "=")
				r.touch(r.fact(nodeFunc, f[1], ""), []sqlscan.Touched{{Name: strings.ToLower(name), Local: true}})
			}
		case "tree":
			r.tree(nodeKind(f[1][0]), f[2], f[3], f[4])
		case "foreign":
			r.grow(r.fact(nodeRead, f[1], f[2]), sqlscan.EffUnknownFunc, nil)
		case "identity": // uses a sequence without an expression that shows it
			r.grow(r.fact(nodeWrite, f[1], f[2]), sqlscan.EffSequence, nil)
		case "settings": // its rules call set_config, also for views over it
			read, write := r.fact(nodeRead, f[1], f[2]), r.fact(nodeWrite, f[1], f[2])
			r.grow(read, sqlscan.EffSessionRead, nil)
			r.grow(write, sqlscan.EffSetConfig, nil)
			read.asked, write.asked = f[3] == "0", f[3] == "0"
		case "edge":
			r.edge(node{nodeKind(f[1][0]), f[2]}, nodeKind(f[3][0]), f[4], f[5])
		}
	}
	if len(rows) == 0 && r.step == 1 {
		r.err = fmt.Errorf("the catalogue is empty")
	}
}

// readBuiltins takes the rows of builtinSQL.
func readBuiltins(rows [][][]byte) *builtins {
	f := &builtins{effects: make(map[string]sqlscan.Effect), named: make(map[string]sqlscan.Effect)}
	var oids []string
	for _, row := range rows {
		if len(row) == builtinColumns {
			if e := builtinEffects(string(row[1])); e != 0 && isOID(string(row[0])) {
				oid := string(row[0])
				f.effects[oid], f.named[string(row[1])] = e, e
				oids = append(oids, oid)
			}
		}
	}
	slices.Sort(oids)
	f.oids = strings.Join(oids, ",")
	return f
}

func (r *Reader) fact(kind nodeKind, oid, name string) *fact {
	n := node{kind, oid}
	f := r.facts[n]
	if f == nil {
		f = &fact{}
		r.facts[n] = f
	}
	f.name = cmp.Or(f.name, name)
	return f
}

// maxTouches is how many settings one use of a name may change if weir is to ask
// for each of them.
const maxTouches = 16

// grow adds effects to a fact and reports whether any is new.
func (r *Reader) grow(f *fact, eff sqlscan.Effect, touches []string) bool {
	before, settings := f.eff, len(f.touches)
	f.eff |= eff
	for _, s := range touches {
		if !slices.Contains(f.touches, s) {
			f.touches = append(f.touches, s)
		}
	}
	if len(f.touches) > maxTouches {
		f.eff, f.touches = f.eff|sqlscan.EffSetConfig, f.touches[:maxTouches]
	}
	return f.eff != before || len(f.touches) != settings
}

// touch records settings that outlive the use of f, or that it creates.
func (r *Reader) touch(f *fact, list []sqlscan.Touched) {
	for _, t := range list {
		names, e := lasting(t)
		r.grow(f, e, names)
	}
}

// bodyEffects are the effects of a routine's body that its caller has: the caller
// is neither a write nor a definition, but it runs alone, and weir checks for temporary
// objects.
func bodyEffects(e sqlscan.Effect) sqlscan.Effect {
	const inner = sqlscan.EffWrites | sqlscan.EffDDL | sqlscan.EffTx | sqlscan.EffCopy | sqlscan.EffRelease |
		sqlscan.EffDiscardAll | sqlscan.EffDeallocateAll | sqlscan.EffWeirShow | sqlscan.EffMulti | sqlscan.EffBackslash
	out := e &^ inner
	if e.Has(inner) {
		out |= sqlscan.EffRoutine
	}
	if e.Has(sqlscan.EffDDL) {
		out |= sqlscan.EffTemp
	}
	if e.Has(sqlscan.EffUnknown) {
		out |= sqlscan.EffUnknownFunc
	}
	return out
}

// function records a user's function. kind is provolatile and prokind.
func (r *Reader) function(oid, name, schema, lang, kind, rest string) {
	ext, body, _ := strings.Cut(rest, "\n")
	if slices.Contains(r.trusted, name) || slices.Contains(r.trusted, schema+"."+name) {
		return
	}
	f := r.fact(nodeFunc, oid, name)
	rt := &routine{node: node{nodeFunc, oid}}
	r.routines = append(r.routines, rt)
	var b sqlscan.Routine
	switch {
	case lang == "sql":
		b = sqlscan.RoutineSQL(body)
		rt.body = body
	case lang == "plpgsql":
		b = sqlscan.RoutinePLpgSQL(body)
		rt.body = body
	case strings.HasSuffix(kind, "a"): // an aggregate: its functions are edges
		return
	case (lang == "c" || lang == "internal") && slices.Contains(vettedExtensions, ext):
		r.grow(f, vettedFunctions[name], nil)
		if setting, ok := vettedSettings[name]; ok {
			r.touch(f, []sqlscan.Touched{{Name: setting}})
		}
		return
	default:
		r.grow(f, sqlscan.EffUnknownFunc, nil)
		return
	}
	rt.writes = b.Effects.Has(sqlscan.EffWrites | sqlscan.EffDDL | sqlscan.EffCopy | sqlscan.EffUnknown)
	r.grow(f, bodyEffects(b.Effects), nil)
	if strings.HasPrefix(kind, "v") {
		r.grow(f, sqlscan.EffRoutine, nil)
	}
	if strings.Contains(strings.ToLower(body), "application_name") {
		r.grow(f, sqlscan.EffSessionRead, nil)
	}
	r.touch(f, b.Touches)
}

// tree records an expression in which functions of pg_catalog with effects
// were found.
func (r *Reader) tree(kind nodeKind, oid, name, hits string) {
	f := r.fact(kind, oid, name)
	for h := range strings.SplitSeq(hits, ",") {
		e := r.builtins.effects[h]
		if h == "0" {
			e = sqlscan.EffSessionRead
		}
		r.grow(f, e, nil)
	}
}

func (r *Reader) edge(src node, kind nodeKind, oid, name string) {
	dst := node{kind, oid}
	if dst == src {
		return
	}
	r.fact(kind, oid, name)
	if !slices.Contains(r.edges[src], dst) {
		r.edges[src] = append(r.edges[src], dst)
	}
}

// settleNames propagates effects along the edges, and through the names in the bodies
// of functions, until nothing is new.
func (r *Reader) settleNames() {
	for again := true; again; {
		again = false
		for src, list := range r.edges {
			from := r.facts[src]
			for _, dst := range list {
				f := r.facts[dst]
				if r.grow(f, from.eff, from.touches) {
					again = true
				}
			}
		}
		x := r.names()
		var body sqlscan.Text
		for _, rt := range r.routines {
			if rt.body == "" {
				continue
			}
			f := r.facts[rt.node]
			body.Read(rt.body)
			c := x.reached(&body, rt.writes)
			if rt.body != "" && r.grow(f, bodyEffects(c.read), c.touches) {
				again = true
			}
		}
	}
}

// names is the index as far as it is known.
func (r *Reader) names() *Index {
	x := &Index{names: make(map[string]NameEffects), stamp: r.stamp}
	for name, e := range r.builtins.named {
		if name != "set_config" { // the text shows more about it
			x.names[name] = NameEffects{read: e, write: e}
		}
	}
	for n, f := range r.facts {
		if f.eff == 0 {
			continue
		}
		c := NameEffects{read: f.eff, write: f.eff, touches: f.touches}
		switch n.kind {
		case nodeWrite:
			c.read = 0
		case nodeEvent:
			x.ddl = x.ddl.With(c)
			continue
		case nodeAny:
			x.any = x.any.With(c)
			continue
		case nodeOperator:
			continue // reached by the types that it is for
		}
		x.add(f.name, c)
	}
	return x
}

// Index returns the finished index.
func (r *Reader) Index() (*Index, error) {
	if r.err != nil {
		return nil, r.err
	}
	x := r.names()
	x.named = r.builtins.named
	for _, rt := range r.routines {
		x.bodies.add(rt.body)
	}
	x.finish()
	return x, nil
}

// isOID makes sure that only numbers are put into queries.
func isOID(s string) bool {
	_, err := strconv.ParseUint(s, 10, 32)
	return err == nil
}

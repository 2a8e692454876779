package postgres

import (
	"slices"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/sqlscan"
)

// A pin is a reason why a client keeps its backend between transactions: the session has
// state that cannot be replayed elsewhere. It is a set of causes; zero means that any backend
// will do.
type pin uint32

const (
	pinTemp      pin = 1 << iota // temporary objects
	pinListen                    // LISTEN
	pinAdvisory                  // session-level advisory locks
	pinHold                      // cursors WITH HOLD
	pinPrepare                   // SQL PREPARE
	pinSet                       // settings changed in a way that is not replayed
	pinRole                      // SET ROLE, SET SESSION AUTHORIZATION
	pinSetConfig                 // set_config(..., false)
	pinSeed                      // setseed
	pinFunc                      // functions whose effects weir does not know
	pinLoad                      // LOAD
	pinSequence                  // currval, lastval
	pinBackup                    // backup mode
	pinUnknown                   // a text that weir could not read
	pinMode                      // the pool's mode is session
	pinEncoding                  // a text in an encoding that weir does not read
	pinUnread                    // functions called while the catalogue was read
	pinUntracked                 // the server does not report changes of settings
	pinEnd
)

var pinNames = [...]string{
	"temp", "listen", "advisory_lock", "hold_cursor", "prepare", "set", "role",
	"set_config", "setseed", "function", "load", "sequence", "backup", "unknown", "session_mode", "encoding", "reading", "untracked",
}

func (p pin) String() string { return core.PinText(uint64(p), pinNames[:]) }

// pinsSeen are the pins whose state the server can show, so that they end when
// it is gone.
const pinsSeen = pinTemp | pinListen | pinAdvisory | pinHold | pinPrepare

// pinsSpoil are the pins for state that DISCARD ALL may leave: no other client gets a backend
// that had one.
const pinsSpoil = pinSet | pinSetConfig | pinSeed | pinFunc | pinLoad | pinBackup | pinUnknown | pinEncoding | pinUnread | pinUntracked

var pinOfEffect = []struct {
	eff sqlscan.Effect
	pin pin
}{
	{sqlscan.EffTemp, pinTemp},
	{sqlscan.EffListen, pinListen},
	{sqlscan.EffAdvisory, pinAdvisory},
	{sqlscan.EffHold, pinHold},
	{sqlscan.EffPrepare, pinPrepare},
	{sqlscan.EffSetUnknown, pinSet},
	{sqlscan.EffRole, pinRole},
	{sqlscan.EffSetConfig, pinSetConfig},
	{sqlscan.EffSeed, pinSeed},
	{sqlscan.EffUnknownFunc, pinFunc},
	{sqlscan.EffLoad, pinLoad},
	{sqlscan.EffSequenceRead, pinSequence},
	{sqlscan.EffBackup, pinBackup},
	{sqlscan.EffUnknown, pinUnknown},
	{sqlscan.EffEncoding, pinEncoding},
}

// pinEffects are the effects that pin; any other statement costs one test.
const pinEffects = sqlscan.EffTemp | sqlscan.EffListen | sqlscan.EffAdvisory | sqlscan.EffHold |
	sqlscan.EffPrepare | sqlscan.EffSetUnknown | sqlscan.EffRole | sqlscan.EffSetConfig |
	sqlscan.EffSeed | sqlscan.EffUnknownFunc | sqlscan.EffLoad | sqlscan.EffSequenceRead | sqlscan.EffBackup | sqlscan.EffUnknown |
	sqlscan.EffEncoding

func pinsOf(eff sqlscan.Effect) pin {
	if !eff.Has(pinEffects) {
		return 0
	}
	var out pin
	for _, m := range pinOfEffect {
		if eff.Has(m.eff) {
			out |= m.pin
		}
	}
	return out
}

// stateSQL asks the server which of the session state that it can show exists.
var stateSQL = own(`SELECT
 EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.pg_my_temp_schema()),
 EXISTS (SELECT FROM pg_catalog.pg_listening_channels()),
 EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()),
 EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable),
 EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)`)

// mayEnd reports whether weir asks the server which pins are left, now or when it has
// answered the units in flight.
func (ps *pins) mayEnd() bool {
	return ps.asking || ps.look || slices.ContainsFunc(ps.c.link.Units(), func(u *unit) bool { return u.probe })
}

// update replaces the pins that the server can show by the server's answer.
func (ps *pins) update(u *unit) {
	ps.asking = false
	ps.c.resume() // it may have waited for the answer, to be handed over
	if u.err != nil || len(u.rows) != 1 {
		return // unknown: keep them
	}
	// The answer does not include the effects of statements sent after the question.
	now := ps.asked & pinsSeen
	for i, p := range []pin{pinTemp, pinListen, pinAdvisory, pinHold, pinPrepare} {
		if string(u.rows[0][i]) == "t" {
			now |= p
		}
	}
	if ps.held&pinPrepare != 0 && now&pinPrepare == 0 {
		ps.c.stmts.leftovers = true
	}
	ps.held = ps.held&^pinsSeen | now
}

func (ps *pins) add(p pin) {
	if ps.asking {
		ps.asked |= p
		ps.look = ps.look || p&pinsSeen != 0
	}
	fresh := p &^ ps.held
	if fresh == 0 {
		return
	}
	ps.held |= fresh
	if fresh&pinsSeen != 0 {
		ps.look = true
	}
	core.CountPins(ps.c.p.pinned[:], uint64(fresh))
}

// pins are the reasons why the client keeps its backend, and how weir learns that
// they have ended.
type pins struct {
	c *client

	held   pin
	look   bool // ask the server which state is left, when quiet
	asking bool // ... that question is in flight
	asked  pin  // pins of statements sent after it
}

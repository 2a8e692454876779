package mysql

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
)

// A pin is a set of reasons why a client keeps its backend between transactions: the session
// holds state that cannot be replayed elsewhere. Zero means that any backend will do.
type pin uint32

const (
	pinTemp       pin = 1 << iota // temporary tables
	pinUserVar                    // user variables
	pinLock                       // GET_LOCK
	pinTableLock                  // LOCK TABLES, FLUSH TABLES WITH READ LOCK, BACKUP
	pinPrepare                    // SQL PREPARE
	pinHandler                    // HANDLER ... OPEN
	pinXA                         // an XA transaction
	pinSet                        // settings that cannot be replayed
	pinTimestamp                  // SET timestamp
	pinTrack                      // the client has chosen what session tracking reports
	pinRole                       // SET ROLE
	pinDatabase                   // the current database was dropped
	pinFunction                   // a procedure or function that changed the session's state
	pinSequence                   // LASTVAL, see sequence.go
	pinNextTx                     // SET TRANSACTION, for the next one
	pinFoundRows                  // SQL_CALC_FOUND_ROWS, until the next statement
	pinDiag                       // the client reads the diagnostics of the statement before
	pinConnection                 // the client knows the connection's id
	pinLongData                   // COM_STMT_SEND_LONG_DATA, until it is executed
	pinCursor                     // a cursor of a prepared statement
	pinOption                     // COM_SET_OPTION within a transaction
	pinGTID                       // the client reads the GTID of its last transaction
	pinGroup                      // SET RESOURCE GROUP
	pinOpaque                     // something whose text weir cannot read may have left anything
	pinUntracked                  // the server does not report changes of session state
	pinUnknown                    // a text that weir could not read
	pinMode                       // the pool's mode is session
	pinEnd
)

var pinNames = [...]string{
	"temp", "user_variable", "get_lock", "table_lock", "prepare", "handler", "xa", "set", "timestamp", "session_track",
	"role", "database", "function", "sequence", "next_transaction", "found_rows", "diagnostics", "connection_id",
	"long_data", "cursor", "option", "gtid", "resource_group", "opaque", "untracked", "unknown", "session_mode",
}

func (p pin) String() string { return core.PinText(uint64(p), pinNames[:]) }

// pinHarmless are pins under which a statement means the same as on another connection.
const pinHarmless = pinUserVar | pinLock | pinHandler | pinConnection | pinDiag | pinSequence | pinLongData | pinCursor | pinGTID | pinMode

// outlastReset are pins that a reset does not end.
const outlastReset = pinMode | pinOption | pinTrack | pinUntracked | pinRole

var pinOfEffect = []struct {
	eff myscan.Effect
	pin pin
}{
	{myscan.EffTemp, pinTemp},
	{myscan.EffUserVarWrite, pinUserVar},
	{myscan.EffLock, pinLock},
	{myscan.EffTableLock, pinTableLock},
	{myscan.EffPrepare, pinPrepare},
	{myscan.EffHandler, pinHandler},
	{myscan.EffXA, pinXA},
	{myscan.EffRole, pinRole},
	{myscan.EffNextTx, pinNextTx},
	{myscan.EffCalcFoundRows, pinFoundRows},
	{myscan.EffUnknown, pinUnknown},
	{myscan.EffGroup, pinGroup},
	{myscan.EffOpaque, pinOpaque},
}

// pinEffects are the effects that pin; any other statement costs one test.
const pinEffects = myscan.EffTemp | myscan.EffUserVarWrite | myscan.EffLock | myscan.EffTableLock | myscan.EffPrepare |
	myscan.EffHandler | myscan.EffXA | myscan.EffRole | myscan.EffNextTx |
	myscan.EffCalcFoundRows | myscan.EffUnknown | myscan.EffGroup | myscan.EffOpaque

func pinsOf(eff myscan.Effect) pin {
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

// add pins the session, and counts each new reason.
func (ps *pins) add(p pin) {
	if p&ps.joining() != 0 && ps.c.link != nil {
		ps.c.link.Doomed = true
	}
	if ps.c.l.cfg.Mode != session.ModeAuto && p != pinMode && p != pinUntracked {
		p &= pinLongData | pinCursor | pinOption | pinXA // these belong to a command or a transaction
	}
	fresh := p &^ ps.held
	ps.held |= p
	if fresh != 0 {
		core.CountPins(ps.c.p.pinned[:], uint64(fresh))
	}
}

// joining are the pins under which a connection may be in a resource group, which no reset
// ends. Modes that ignore session state do not guess.
func (ps *pins) joining() pin {
	switch mode := ps.c.l.cfg.Mode; {
	case !ps.c.p.facts.groupsSessions():
		return 0
	case mode == session.ModeTransaction || mode == session.ModeStatement:
		return pinGroup
	}
	return pinGroup | pinOpaque | pinUnknown
}

// pins are the reasons why the client keeps its backend, and what weir needs to notice their
// end.
type pins struct {
	c *client

	held       pin
	locks      []string  // of locks that GET_LOCK requested with a literal
	named      []string  // names of statements prepared in SQL
	leaves     string    // name that the command in flight deallocates
	tableLocks tableLock // as far as weir knows
}

// mayHideXA reports whether the client may be in an XA transaction that weir has not seen,
// because its statement is in a procedure or in EXECUTE IMMEDIATE. A prepared XA transaction
// outlives its connection. But after a reset MariaDB answers OK when another session commits
// it, and keeps its locks until the connection is closed; further statements on the connection
// fail.
func (ps *pins) mayHideXA() bool { return ps.c.p.facts.mariadb && ps.c.inTx() }

// notePrepared records the name of a statement that is prepared in SQL. Without a name, the pin
// lasts until the session is reset.
func (ps *pins) notePrepared(name string) {
	if name = strings.ToLower(name); !slices.Contains(ps.named, name) {
		ps.named = append(ps.named, strings.Clone(name))
	}
}

// deallocated removes the name that the command has deallocated.
func (ps *pins) deallocated() {
	ps.named = slices.DeleteFunc(ps.named, func(name string) bool { return name == ps.leaves })
	if len(ps.named) == 0 {
		ps.held &^= pinPrepare
	}
}

package postgres

import (
	"strings"

	"github.com/weirdb/weir/internal/sqlscan"
)

// A pin is a cause for which a client keeps its backend between transactions:
// the session holds something that cannot be replayed elsewhere. A set of
// causes; zero means that any backend will do.
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
	pinFunc                      // functions that may change settings
	pinLoad                      // LOAD
	pinSequence                  // currval, lastval
	pinUnknown                   // a text that weir could not read
	pinMode                      // the pool's mode is session
	pinEnd
)

var pinNames = [...]string{
	"temp", "listen", "advisory_lock", "hold_cursor", "prepare", "set", "role",
	"set_config", "setseed", "function", "load", "sequence", "unknown", "session_mode",
}

func (p pin) String() string {
	var names []string
	for i, n := range pinNames {
		if p&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ",")
}

// pinsSeen are the pins whose cause the server can show, so that they end when
// it is gone.
const pinsSeen = pinTemp | pinListen | pinAdvisory | pinHold | pinPrepare | pinFunc

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
	{sqlscan.EffUnknown, pinUnknown},
}

// pinEffects are the effects that pin; any other statement costs one test.
const pinEffects = sqlscan.EffTemp | sqlscan.EffListen | sqlscan.EffAdvisory | sqlscan.EffHold |
	sqlscan.EffPrepare | sqlscan.EffSetUnknown | sqlscan.EffRole | sqlscan.EffSetConfig |
	sqlscan.EffSeed | sqlscan.EffUnknownFunc | sqlscan.EffLoad | sqlscan.EffSequenceRead | sqlscan.EffUnknown

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

// stateSQL asks the server which session state there is. The last column tells
// whether a function of this database might change settings behind our back:
// custom settings are visible nowhere, so such a database keeps the pin. A
// function need not be volatile to call set_config, and one in SQL (language 14)
// with a parsed body, BEGIN ATOMIC or RETURN, has no text to be searched.
const stateSQL = `SELECT
 EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.pg_my_temp_schema()),
 EXISTS (SELECT FROM pg_catalog.pg_listening_channels()),
 EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()),
 EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable),
 EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql),
 EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
  WHERE n.nspname NOT IN ('pg_catalog', 'information_schema')
  AND (p.prosrc ~* 'set_config|setseed|currval|lastval' OR p.prolang = 14 AND p.prosrc = ''
   OR p.provolatile = 'v' AND (p.prosrc ~* '[[:<:]](set|execute|load)[[:>:]]' OR p.proname ~ '^(dblink|set_)')))`

// updatePins replaces the pins that the server can show by what it shows.
func (c *client) updatePins(u *unit) {
	c.asking = false
	if u.err != nil || len(u.rows) != 1 || len(u.rows[0]) != 6 {
		return // not known: keep them
	}
	// What was sent behind the question, the answer knows nothing of.
	now := c.pinsAsked & pinsSeen
	for i, p := range []pin{pinTemp, pinListen, pinAdvisory, pinHold, pinPrepare, pinFunc} {
		if string(u.rows[0][i]) == "t" {
			now |= p
		}
	}
	switch {
	case c.pins&pinFunc == 0:
		now &^= pinFunc // the database holds such functions, but this client used none
	case now&pinFunc != 0:
		c.changed = true
	case c.changed:
		now |= pinFunc // the function may be gone, what it did is not
	}
	if c.pins&pinPrepare != 0 && now&pinPrepare == 0 {
		c.leftovers = true
	}
	c.pins = c.pins&^pinsSeen | now
}

// changesSettings tells whether the code of a DO may change settings, seed
// random() or read a sequence: nothing on the server will show it. It errs
// towards yes.
func changesSettings(sql string) bool {
	sql = strings.ToLower(sql)
	for _, name := range []string{"set_config", "setseed", "currval", "lastval"} {
		if strings.Contains(sql, name) {
			return true
		}
	}
	before := "" // the word, or the sign, in front of the next word
	for i := 0; i < len(sql); {
		c := sql[i]
		if !isNameByte(c) {
			if c > ' ' {
				before = sql[i : i+1]
			}
			i++
			continue
		}
		from := i
		for i < len(sql) && isNameByte(sql[i]) {
			i++
		}
		word := sql[from:i]
		switch strings.Trim(word, "$") {
		case "execute", "load":
			return true
		case "set": // the command, not that of UPDATE or ALTER
			switch before {
			case "begin", "then", "else", "loop":
				return true
			}
			if before == "" || !isNameByte(before[0]) && before != `"` && before != ")" || strings.HasSuffix(before, "$") || strings.Contains(sql, "--") {
				return true
			}
		}
		before = word
	}
	return false
}

func (c *client) addPins(p pin) {
	if c.asking {
		c.pinsAsked |= p
		c.look = c.look || p&pinsSeen != 0
	}
	fresh := p &^ c.pins
	if fresh == 0 {
		return
	}
	c.pins |= fresh
	if fresh&pinsSeen != 0 {
		c.look = true
	}
	for i := range pinNames {
		if fresh&(1<<i) != 0 {
			c.p.st.pins[i]++
		}
	}
}

package mysql

import (
	"strconv"
	"strings"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sqlscan/myscan"
	"github.com/weirdb/weir/internal/wire/mywire"
)

// databaseSetting is the setting that holds a database other than the login's. No server has a
// variable of that name.
const databaseSetting = "database"

// charsetNames are the settings that depend on each other: setting one changes others.
var charsetNames = [...]string{
	"character_set_client", "character_set_results", "character_set_connection", "collation_connection",
}

// A step is one command of a transition.
type step struct {
	cmd byte
	arg string
}

// reachable reports whether a transition exists: only a new login leads back to no current
// database.
func reachable(from, to *session.Set, home string) bool {
	if home != "" {
		return true
	}
	_, has := from.Get(databaseSetting)
	_, wants := to.Get(databaseSetting)
	return wants || !has
}

// transition returns the commands that change a session's settings from one set to another, at
// least one. It resets a setting that only from has to its value after the login.
func (f *backendSession) transition(from, to *session.Set) []step {
	facts, home := &f.b.p.facts, f.b.p.key.database
	var steps []step
	charsets := false
	if facts.misreads(from) {
		steps, charsets = []step{{mywire.ComQuery, "SET NAMES utf8mb4"}}, true
	}
	var b strings.Builder
	assign := func(name, value string) {
		if b.Len() == 0 {
			b.WriteString("SET ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString("SESSION ")
		b.WriteString(name)
		b.WriteByte('=')
		b.WriteString(value)
	}
	visit := func(name, value string) {
		switch {
		case name == databaseSetting:
		case isCharset(name):
			charsets = true
		default:
			assign(name, value)
		}
	}
	for _, old := range from.List() {
		if _, ok := to.Get(old.Name); !ok {
			visit(old.Name, f.initial(old.Name))
		}
	}
	for _, s := range to.List() {
		if have, ok := from.Get(s.Name); !ok || have != s {
			visit(s.Name, render(s.Value))
		}
	}
	if names := namesOf(to, facts.base); charsets && names != "" {
		if b.Len() == 0 {
			b.WriteString("SET ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(names)
	} else if charsets {
		assignCharsets(to, facts, assign)
	}
	if b.Len() > 0 {
		steps = append(steps, step{mywire.ComQuery, b.String()})
	}
	was, _ := from.Get(databaseSetting)
	is, wants := to.Get(databaseSetting)
	if was != is {
		name := home
		if wants {
			name = is.Value
		}
		steps = append(steps, step{mywire.ComInitDB, name})
	}
	if len(steps) == 0 {
		steps = append(steps, step{mywire.ComPing, ""})
	}
	return steps
}

// misreads reports whether a session with these settings reads the strings in a text
// differently: if the client's texts are bytes, and strings have a character set that does not
// contain ASCII.
func (f *poolFacts) misreads(set *session.Set) bool {
	value := func(name string) string {
		if s, ok := set.Get(name); ok {
			return s.Value
		}
		return f.base[name]
	}
	connection := value("character_set_connection")
	return value("character_set_client") == "binary" &&
		(connection == "ucs2" || strings.HasPrefix(connection, "utf16") || connection == "utf32")
}

func isCharset(name string) bool {
	for _, n := range charsetNames {
		if n == name {
			return true
		}
	}
	return false
}

// namesOf returns the SET NAMES ... COLLATE with which a client has most likely set its
// character sets; servers then report that collation in the columns of results. It is empty if
// the client set them otherwise.
func namesOf(to *session.Set, base map[string]string) string {
	var values [len(charsetNames)]string
	own := 0
	for i, n := range charsetNames {
		values[i] = base[n]
		if s, ok := to.Get(n); ok {
			values[i] = s.Value
			own++
		}
	}
	if own%len(charsetNames) != 0 || values[0] == "" || values[3] == "" || values[0] != values[1] || values[0] != values[2] {
		return ""
	}
	return "NAMES " + render(values[0]) + " COLLATE " + render(values[3])
}

// assignCharsets sets all four settings, the collation last. Without a collation of its own the
// session gets the character set's default, which SET character_set_connection sets.
func assignCharsets(to *session.Set, facts *poolFacts, assign func(name, value string)) {
	own := false
	for _, n := range charsetNames[:3] {
		s, ok := to.Get(n)
		if !ok {
			assign(n, facts.initial(n))
			continue
		}
		own = own || n == "character_set_connection"
		value := render(s.Value)
		if s.Value == "" {
			value = "NULL" // character_set_results
		}
		assign(n, value)
	}
	if s, ok := to.Get("collation_connection"); ok {
		assign("collation_connection", render(s.Value))
	} else if !own {
		assign("collation_connection", facts.initial("collation_connection"))
	}
}

// initial is poolFacts.initial on this connection. Two variables that weir relies on to read
// the answers to groups have the value that the login found: the server's default may have
// changed since.
func (f *backendSession) initial(name string) string {
	switch {
	case !f.b.greeted:
	case name == "auto_increment_increment":
		return strconv.FormatUint(f.step, 10)
	case name == "max_error_count":
		return strconv.Itoa(f.listed)
	}
	return f.b.p.facts.initial(name)
}

// initial returns the SQL of a setting's value after the login.
func (f *poolFacts) initial(name string) string {
	if v, ok := f.base[name]; ok {
		return render(v)
	}
	if name == "foreign_key_checks" || name == "unique_checks" {
		return "@@GLOBAL." + name // MySQL reads their DEFAULT as 0, whatever the global value is
	}
	return "DEFAULT"
}

// baseSQL returns the statement that sets what a login sets.
func baseSQL(base map[string]string) string {
	var parts []string
	names := namesOf(&session.Set{}, base)
	for _, n := range baseNames {
		if names == "" || !isCharset(n) {
			parts = append(parts, "SESSION "+n+"="+render(base[n]))
		}
	}
	if names != "" {
		parts = append(parts, names)
	}
	return "SET " + strings.Join(parts, ", ")
}

// render returns the SQL of a value as the server reports it: a number unchanged, anything else
// as a string that every sql_mode reads the same.
func render(value string) string {
	if isNumber(value) {
		return value
	}
	if strings.ContainsAny(value, `\'`) {
		const digits = "0123456789ABCDEF"
		var b strings.Builder
		b.WriteString("0x")
		for i := range len(value) {
			b.WriteByte(digits[value[i]>>4])
			b.WriteByte(digits[value[i]&15])
		}
		return b.String()
	}
	return "'" + value + "'"
}

// isNumber reports whether a value is a plain decimal number, which some variables accept only
// without quotes.
func isNumber(v string) bool {
	digits, dots := 0, 0
	for i := range len(v) {
		switch {
		case v[i] >= '0' && v[i] <= '9':
			digits++
		case v[i] == '-' && i == 0:
		case v[i] == '.':
			dots++
		default:
			return false
		}
	}
	return digits > 0 && dots <= 1
}

// readMode determines how the client's texts are read.
func (sg *settings) readMode() {
	c := sg.c
	f := &c.p.facts
	value := func(name string) string {
		if s, ok := c.set.Get(name); ok {
			return s.Value
		}
		return f.base[name]
	}
	sqlMode := value("sql_mode")
	c.texts.mode = myscan.Mode{
		AnsiQuotes:         myscan.HasMode(sqlMode, "ANSI_QUOTES"),
		NoBackslashEscapes: myscan.HasMode(sqlMode, "NO_BACKSLASH_ESCAPES"),
		Multi:              c.caps.Has(mywire.CapMultiStatements),
		Charset:            charsetClass(value("character_set_client")),
		MariaDB:            f.mariadb,
		Version:            f.version,
	}
	sg.strict = myscan.HasMode(sqlMode, "STRICT_TRANS_TABLES") || myscan.HasMode(sqlMode, "STRICT_ALL_TABLES")
	if myscan.HasMode(sqlMode, "ORACLE") {
		c.pins.add(pinUnknown) // another grammar
	}
	sg.manual = isOff(value("autocommit"))
}

// isOff reports whether a value means off; servers have two forms for it.
func isOff(value string) bool { return value == "0" || strings.EqualFold(value, "OFF") }

// status returns the flags of a session with these settings outside a transaction.
func (sg *settings) status() (s mywire.Status) {
	mode := &sg.c.texts.mode
	if !sg.manual {
		s |= mywire.StatusAutocommit
	}
	if mode.NoBackslashEscapes {
		s |= mywire.StatusNoBackslashEscapes
	}
	if mode.AnsiQuotes && mode.MariaDB {
		s |= mywire.StatusANSIQuotes
	}
	return s
}

// charsetClass returns how the server's lexer reads bytes above 127.
func charsetClass(name string) myscan.Charset {
	switch strings.ToLower(name) {
	case "", "utf8mb4", "utf8mb3", "utf8", "ascii", "binary":
		return myscan.CharsetUTF8
	case "big5", "cp932", "gb18030", "gbk", "sjis":
		return myscan.CharsetTrail
	}
	return myscan.CharsetByte
}

// settings are the session's settings: what the server reports of them, and what weir must
// query.
type settings struct {
	c *client

	start *session.Set // after its login: COM_RESET_CONNECTION returns to it
	// strict: a value that does not fit is an error. Otherwise a statement of several rows is
	// more lenient than several statements.
	strict bool
	// manual: autocommit is off, as far as weir knows: the client has set it, or sessions begin
	// so.
	manual bool
	// owed is session state that the server has reported in the answer to a query of weir's
	// own: weir adds it to the client's next OK.
	owed []byte
	// The client itself has chosen which variables, or whether changes of the session's state,
	// it gets reported.
	choseVariables, choseChanges bool
	// list is the client's list of tracked variables, if weir keeps it.
	list trackedVariables
}

// noteSet records the assignments of a SET that the server does not report completely.
func (sg *settings) noteSet(u *unit, info *myscan.Statement) {
	known := info.Verb != myscan.VerbSet
	for a := range info.Set.All() {
		known = a.Name != ""
		switch {
		case a.Name == "names" || a.Name == "character set":
			u.change |= changeNames
			if a.Collate != "" {
				u.collation = strings.Clone(strings.Trim(a.Collate, "'\"`"))
			}
		case a.Name == "character_set_connection":
			u.change |= changeNames
		case a.Scope == myscan.ScopeSession && strings.HasPrefix(a.Name, "session_track_"):
			// The list decides whether the server reports this change.
			sg.choseVariables = sg.choseVariables || a.Name == "session_track_system_variables"
			sg.choseChanges = sg.choseChanges || a.Name == "session_track_state_change"
			sg.c.pins.add(pinTrack)
			sg.c.link.Doomed = true
		case a.Scope == myscan.ScopeSession && a.Name == "timestamp" && a.Kind == myscan.ValueDefault:
			u.change |= changeTimestampDefault
		case a.Scope == myscan.ScopeSession && a.Name == "timestamp", a.Name == "":
			u.change &^= changeTimestampDefault // the last of several counts; one that weir cannot read may be any
		}
	}
	if !known { // SET RESOURCE GROUP, and others that assign no variable
		sg.c.pins.add(pinSet)
		sg.c.link.Doomed = true
	}
}

// noteLaterSet is noteSet for a SET that is the nth statement of its text, from the second on.
func (sg *settings) noteLaterSet(u *unit, info *myscan.Statement, n int) {
	if sg.c.link.shows {
		sg.noteList(u, info)
		return
	}
	names, collation, chose := u.change&changeNames, u.collation, sg.choseVariables
	u.change &^= changeNames
	sg.noteSet(u, info)
	if sg.choseVariables && !chose && u.kind == unitClient {
		sg.choseVariables = false // weir's own list is set until then
		if u.chooses == 0 {
			u.chooses = n
		}
	}
	if u.change&changeNames != 0 {
		sg.c.pins.add(pinSet) // it depends on how many statements the server executes
	}
	u.change, u.collation = u.change&^changeNames|names, collation
}

// releases reports whether the end of a transaction also ends the connection, because the
// client has set completion_type so.
func (sg *settings) releases(sql string, info *myscan.Statement) bool {
	s, _ := sg.c.set.Get("completion_type")
	return (s.Value == "RELEASE" || s.Value == "2") && !info.Effects.Has(myscan.EffTxBegin) && !strings.Contains(strings.ToLower(sql), "release")
}

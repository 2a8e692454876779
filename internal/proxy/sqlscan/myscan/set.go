package myscan

import (
	"iter"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// Scope says what an assignment of SET applies to.
type Scope uint8

// The scopes.
const (
	ScopeSession     Scope = iota // the session
	ScopeNext                     // the next transaction only
	ScopeGlobal                   // GLOBAL
	ScopePersist                  // PERSIST
	ScopePersistOnly              // PERSIST_ONLY
	ScopeUser                     // a user variable of the session; Name is without its @
)

// ValueKind is the class of an assignment's value.
type ValueKind uint8

// The kinds of values. All except ValueExpr mean the same on every connection with the same
// sql_mode and character set.
const (
	ValueExpr    ValueKind = iota // anything else: @@x, @x, concat(...), (select ...), a parameter
	ValueNumber                   // 1, -1, 1.5, 0x1F
	ValueString                   // '...' or "...", one literal without a letter or introducer in front
	ValueWord                     // ON, OFF, TRUE, utf8mb4, SYSTEM, `x`
	ValueDefault                  // DEFAULT
	ValueNull                     // NULL
)

// Assignment is one item of SET.
type Assignment struct {
	// Name is the variable in lower case without quotes; a user variable's is as written,
	// without @. For names with the same meaning it is the one that MySQL documents:
	// transaction_isolation and transaction_read_only for tx_isolation and tx_read_only.
	// "names" stands for SET NAMES, "character set" for SET CHARACTER SET and SET CHARSET.
	Name string
	// Value is the value as written, without comments and white space at its ends. For SET
	// TRANSACTION it is the value of the variable: 'READ-COMMITTED' with its quotes, ON, OFF.
	Value string
	// Collate is the collation of SET NAMES ... COLLATE as written, or "".
	Collate string
	Scope   Scope
	Kind    ValueKind
	// Bare: written as @@name, without a scope. MariaDB does not report these.
	Bare bool
}

// SetList is the content of SET. The zero value is empty.
type SetList struct {
	lex lexer // after SET; its text ends where the statement does
}

// All iterates over the assignments in order. One that cannot be parsed ends the iteration with
// an Assignment whose Name is empty; then the statement has EffSetUnknown. SET PASSWORD, SET
// ROLE and other forms that assign no variable have an empty list.
func (l SetList) All() iter.Seq[Assignment] {
	return func(yield func(Assignment) bool) {
		if l.lex.sql == "" {
			return
		}
		w := newSetWalker(l.lex)
		for w.more() {
			if a := w.item(); !yield(a) || a.Name == "" {
				return
			}
		}
	}
}

// Text returns the value as the server would store it: a string without its quotes and escapes,
// anything else as written but without the quotes of an identifier. ok is false for an
// expression. It allocates only if there are escapes.
func (a Assignment) Text(mode Mode) (value string, ok bool) {
	switch a.Kind {
	case ValueExpr:
		return a.Value, false
	case ValueString:
		return unquoteString(a.Value, mode)
	case ValueWord:
		return unquote(a.Value), true
	}
	return a.Value, true
}

// variableNames are the settings that clients change most: folding their names needs no copy.
var variableNames = lexicon.NewTable(strings.Fields(`
	autocommit big_tables character_set_client character_set_connection character_set_database
	character_set_results character_set_server collation_connection collation_database collation_server
	foreign_key_checks group_concat_max_len innodb_lock_wait_timeout interactive_timeout lock_wait_timeout
	max_allowed_packet max_execution_time max_statement_time net_read_timeout net_write_timeout profiling
	sql_auto_is_null sql_big_selects sql_log_bin sql_mode sql_notes sql_quote_show_create sql_safe_updates
	sql_select_limit time_zone timestamp transaction_isolation transaction_read_only tx_isolation tx_read_only
	unique_checks wait_timeout session_track_schema session_track_state_change session_track_system_variables
	session_track_transaction_info insert_id last_insert_id identity`))

// unreplayed are variables that are no settings of a session: assigning them is an action, not
// a choice that lasts until it is undone.
var unreplayed = lexicon.NewTable(strings.Fields(`
	identity insert_id last_insert_id rand_seed1 rand_seed2 gtid_next gtid_seq_no pseudo_thread_id
	pseudo_slave_mode pseudo_replica_mode warning_count error_count debug debug_sync profiling`))

// canonical returns a variable's name in the form of Assignment.Name.
func canonical(name string) string {
	name = unquote(name)
	if i := variableNames.Find(name, lexicon.Hash(name), true); i >= 0 {
		name = variableNames.Word(i)
	} else {
		name = lexicon.Lower(name)
	}
	switch name {
	case "tx_isolation":
		return "transaction_isolation"
	case "tx_read_only":
		return "transaction_read_only"
	}
	return name
}

// setWalker parses the items of SET one by one.
type setWalker struct {
	lex  lexer
	tok  token // the next unread token
	prev token

	scope    Scope // of items without one of their own: that of the last keyword
	scoped   bool  // there was such a keyword
	txItems  bool  // the items are those of SET TRANSACTION
	started  bool
	value    token // from the first to the last token of the item's value
	forEnds  bool  // the word FOR ends the list
	wasComma bool
}

func newSetWalker(l lexer) setWalker {
	w := setWalker{lex: l}
	w.next()
	return w
}

func (w *setWalker) next() {
	w.prev = w.tok
	w.tok = w.lex.next()
}

func (w *setWalker) text(t token) string { return w.lex.sql[t.start:t.end] }

// ends reports whether tok ends the list.
func (w *setWalker) ends() bool {
	return w.tok.kind == tokEOF || w.tok.kind == ';' || w.forEnds && w.tok.kw == kwFor
}

// more reports whether there is an item to parse. A SET without items has one that cannot be
// parsed; so has a comma with nothing after it.
func (w *setWalker) more() bool { return !w.started || w.wasComma || !w.ends() }

// item parses one item and the comma after it. Name is empty if it cannot be parsed.
func (w *setWalker) item() Assignment {
	first := !w.started
	w.started, w.wasComma = true, false
	a, ok := w.read(first)
	if !ok {
		return Assignment{}
	}
	if w.tok.kind == ',' {
		w.wasComma = true
		w.next()
	} else if !w.ends() {
		return Assignment{}
	}
	return a
}

// read parses an item up to the comma or the end.
func (w *setWalker) read(first bool) (Assignment, bool) {
	if w.txItems {
		return w.characteristic()
	}
	if w.scopeWord() {
		w.next()
	}
	switch {
	case w.tok.kw == kwTransaction && first && w.tok.kind == tokWord:
		w.next()
		w.txItems = true
		if !w.scoped {
			w.scope = ScopeNext
		}
		return w.characteristic()
	case w.tok.kw == kwNames:
		w.next()
		return w.names()
	case w.tok.kw == kwCharset:
		w.next()
		return w.charset()
	case w.tok.kw == kwCharacter || w.tok.kw == kwChar:
		w.next()
		if w.tok.kw != kwSet {
			return Assignment{}, false
		}
		w.next()
		return w.charset()
	}
	a, ok := w.variable()
	if !ok || w.tok.kind != tokAssign && (w.tok.kind != tokOp || w.text(w.tok) != "=") {
		return Assignment{}, false
	}
	w.next()
	a.Kind, ok = w.expression()
	a.Value = w.text(w.value)
	return a, ok
}

// scopeWord takes tok as the scope of this and the following items, if it is one, and reports
// whether it is.
func (w *setWalker) scopeWord() bool {
	switch w.tok.kw {
	case kwGlobal:
		w.scope = ScopeGlobal
	case kwSession, kwLocal:
		w.scope = ScopeSession
	case kwPersist:
		w.scope = ScopePersist
	case kwPersistOnly:
		w.scope = ScopePersistOnly
	default:
		return false
	}
	w.scoped = true
	return true
}

// variable parses the name of a variable.
func (w *setWalker) variable() (Assignment, bool) {
	a := Assignment{Scope: w.scope}
	switch w.tok.kind {
	case tokUserVar:
		a.Scope = ScopeUser
		a.Name = userVariable(w.text(w.tok), w.lex.mode)
		w.next()
		return a, true
	case tokSysVar:
		name := w.text(w.tok)[2:]
		a.Scope = ScopeSession
		w.next()
		if w.tok.kind == '.' {
			switch lookupKeyword(name, lexicon.Hash(name)) {
			case kwGlobal:
				a.Scope = ScopeGlobal
			case kwSession, kwLocal:
			case kwPersist:
				a.Scope = ScopePersist
			case kwPersistOnly:
				a.Scope = ScopePersistOnly
			default:
				return a, false
			}
			w.next()
			return a, w.rest(&a)
		}
		a.Name, a.Bare = canonical(name), true
		if strings.HasPrefix(a.Name, "transaction_") {
			a.Scope = ScopeNext
		}
		return a, a.Name != ""
	}
	return a, w.rest(&a)
}

// rest parses a variable's name of one or more parts.
func (w *setWalker) rest(a *Assignment) bool {
	first, parts := w.tok, 0
	for {
		if w.tok.kind != tokWord && w.tok.kind != tokQuoted {
			return false
		}
		w.next()
		parts++
		if w.tok.kind != '.' {
			break
		}
		w.next()
	}
	name := w.lex.sql[first.start:w.prev.end]
	if parts == 1 {
		a.Name = canonical(name)
	} else {
		a.Name = lexicon.Lower(name)
	}
	return a.Name != ""
}

// names parses what follows SET NAMES.
func (w *setWalker) names() (Assignment, bool) {
	a, ok := w.charset()
	a.Name = "names"
	if ok && w.tok.kw == kwCollate {
		w.next()
		if w.tok.kind != tokWord && w.tok.kind != tokQuoted && w.tok.kind != tokString {
			return a, false
		}
		if w.kindOf(w.tok) != ValueDefault { // MariaDB then uses the character set's default
			a.Collate = w.text(w.tok)
		}
		w.next()
	}
	return a, ok
}

// charset parses what follows SET CHARACTER SET.
func (w *setWalker) charset() (Assignment, bool) {
	a := Assignment{Name: "character set", Value: w.text(w.tok)}
	a.Kind = w.kindOf(w.tok)
	w.value = w.tok
	switch a.Kind {
	case ValueString, ValueWord, ValueDefault:
		w.next()
		return a, true
	}
	return a, false
}

// characteristic parses one part of SET TRANSACTION.
func (w *setWalker) characteristic() (Assignment, bool) {
	a := Assignment{Scope: w.scope, Kind: ValueString}
	first := w.tok.kw
	w.next()
	second := w.tok.kw
	switch {
	case first == kwRead && (second == kwOnly || second == kwWrite):
		a.Name, a.Kind, a.Value = "transaction_read_only", ValueWord, "OFF"
		if second == kwOnly {
			a.Value = "ON"
		}
	case first == kwIsolation && second == kwLevel:
		w.next()
		level := w.tok.kw
		if level == kwRead || level == kwRepeatable {
			w.next()
		}
		a.Name = "transaction_isolation"
		switch {
		case level == kwRead && w.tok.kw == kwCommitted:
			a.Value = "'READ-COMMITTED'"
		case level == kwRead && w.tok.kw == kwUncommitted:
			a.Value = "'READ-UNCOMMITTED'"
		case level == kwRepeatable && w.tok.kw == kwRead:
			a.Value = "'REPEATABLE-READ'"
		case level == kwSerializable:
			a.Value = "'SERIALIZABLE'"
		default:
			return a, false
		}
	default:
		return a, false
	}
	w.next()
	return a, true
}

// expression parses a value up to the comma or the end.
func (w *setWalker) expression() (ValueKind, bool) {
	first, depth, count := w.tok, 0, 0
	for !w.ends() && (w.tok.kind != ',' || depth > 0) {
		switch w.tok.kind {
		case '(':
			depth++
		case ')':
			depth--
		}
		count++
		w.next()
	}
	w.value = token{start: first.start, end: w.prev.end}
	if count == 0 || depth != 0 {
		w.value.end = w.value.start
		return ValueExpr, false
	}
	switch sign := w.lex.sql[first.start]; {
	case count == 1:
		return w.kindOf(first), true
	case count == 2 && (sign == '-' || sign == '+') && w.prev.kind == tokNumber:
		return ValueNumber, true
	}
	return ValueExpr, true
}

// kindOf returns the kind of a value that is one token.
func (w *setWalker) kindOf(t token) ValueKind {
	switch t.kind {
	case tokNumber:
		if w.lex.sql[t.start] == '\\' {
			return ValueNull
		}
		return ValueNumber
	case tokString:
		if c := w.lex.sql[t.start]; c == '\'' || c == '"' {
			return ValueString
		}
	case tokQuoted:
		return ValueWord
	case tokWord:
		switch {
		case t.kw == kwDefault:
			return ValueDefault
		case t.kw == kwNull:
			return ValueNull
		case t.kw.has(classExpression) && t.kw.has(classFunction): // CURRENT_USER, LOCALTIME, ...
			return ValueExpr
		}
		return ValueWord
	}
	return ValueExpr
}

package myscan

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

func names(l lexer, yield func(name string, call bool) bool) {
	prev := token{}
	for t := l.next(); t.kind != tokEOF; t = l.next() {
		if t.kind == tokWord || t.kind == tokQuoted {
			ahead := l
			call := prev.kw == kwCall || ahead.next().kind == '('
			if !yield(lowerName(unquote(l.sql[t.start:t.end])), call) {
				return
			}
		}
		prev = t
	}
}

// lowerName folds a name as all servers do, with exceptions on the safe side: on servers that
// distinguish case, several names fold to one.
func lowerName(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= 'A' && c <= 'Z' || c >= 0x80 {
			return strings.ToLower(name)
		}
	}
	return name
}

// A Body has the possible effects of the text of a stored routine, a trigger or a view on the
// session that runs it.
type Body struct {
	// Effects are those of the text itself. EffUnknownFunc stands for changes that the server
	// reports: settings, user variables, temporary tables.
	Effects Effect
	// Calls are the names of routines that it calls, in lower case, without built-in functions.
	Calls []string
	// Names are all names in it.
	Names []string
}

// ReadBody reads the text of a routine, a trigger, a view or an expression. Whatever it does
// not know for certain is an effect: a body without effects and with harmless calls and
// relations changes nothing in a session, and reads nothing that another statement of the
// session has left.
func ReadBody(sql string, mode Mode) Body {
	r := bodyReader{lex: newLexer(sql, mode)}
	r.run()
	if r.lex.broken || r.lex.doubtful || r.lex.executed {
		r.body.Effects |= EffOpaque | EffUnknownFunc
	}
	return r.body
}

type bodyReader struct {
	lex         lexer
	prev, tok   token
	before      token // the token before the name that prev ends
	past        keyword
	chain       int  // parts of the dotted name that prev ends
	runs, ran   bool // a statement that counts rows has begun; ... and has ended
	inserts     bool // one that may generate an id has begun
	inserted    bool // ... and has ended
	declares    bool // in the names of a DECLARE
	writing     bool // in an UPDATE, INSERT or REPLACE, whose SET names columns
	sysvar      bool // after @@session
	locals      map[string]bool
	body        Body
	seen, calls map[string]bool
}

// Calls returns the names of routines that a text calls, in their order and in lower case,
// without built-in functions of the server.
func (t *Text) Calls() []string {
	r := bodyReader{lex: t.lexer()}
	r.run()
	return slices.DeleteFunc(r.body.Calls, func(name string) bool { return IsBuiltIn(name, r.lex.mode) })
}

// IsBuiltIn reports whether the server of mode has a built-in function of this name, even if
// only in some versions or spellings: otherwise the name may be that of a stored function as
// well.
func IsBuiltIn(name string, mode Mode) bool {
	return lateNames[name] || lookupKeyword(name, lexicon.Hash(name)).isFunction(mode)
}

func (r *bodyReader) run() {
	r.locals, r.seen, r.calls = map[string]bool{}, map[string]bool{}, map[string]bool{}
	for r.tok = r.lex.next(); r.tok.kind != tokEOF; r.tok = r.lex.next() {
		r.observe()
		if r.tok.kind != '.' {
			r.past = r.prev.kw
		}
		r.prev = r.tok
	}
}

func (r *bodyReader) text(t token) string { return r.lex.sql[t.start:t.end] }

func (r *bodyReader) observe() {
	switch r.tok.kind {
	case tokWord, tokQuoted:
		r.name()
	case tokUserVar:
		r.body.Effects |= EffUserVarWrite | EffUnknownFunc // the server does not report all assignments
	case tokAssign:
		r.body.Effects |= EffUnknownFunc
	case tokSysVar:
		r.variable(strings.TrimPrefix(r.text(r.tok), "@@"))
		r.sysvar = true
		return
	case '(':
		r.call()
	case ';':
		r.declares, r.writing = false, false
		r.ran, r.inserted = r.ran || r.runs, r.inserted || r.inserts
	}
	r.sysvar = r.sysvar && r.tok.kind == '.'
	if r.tok.kind != tokWord && r.tok.kind != tokQuoted && r.tok.kind != '.' && r.tok.kind != '(' {
		r.chain = 0
	}
}

// name handles a word or a quoted name.
func (r *bodyReader) name() {
	name := lowerName(unquote(r.text(r.tok)))
	if r.sysvar && r.prev.kind == '.' {
		r.variable(name)
		return
	}
	if r.prev.kind == '.' && r.chain > 0 {
		r.chain++
	} else {
		r.chain, r.before = 1, r.prev
	}
	if !r.seen[name] {
		r.seen[name] = true
		r.body.Names = append(r.body.Names, strings.Clone(name))
	}
	if r.chain == 1 && r.prev.kw == kwCall || r.chain > 1 && r.before.kw == kwCall {
		if r.next().kind != '.' {
			r.called(name)
		}
		return
	}
	if r.declares {
		r.locals[name] = true
		r.declares = false
		return
	}
	if r.tok.kind == tokWord && r.chain == 1 {
		r.keyword(name)
	}
}

func (r *bodyReader) called(name string) {
	if !r.calls[name] {
		r.calls[name] = true
		r.body.Calls = append(r.body.Calls, strings.Clone(name))
	}
}

// keyword handles an unquoted word that may be a keyword.
func (r *bodyReader) keyword(name string) {
	switch name {
	case "declare":
		r.declares = true
		return
	case "xa":
		r.body.Effects |= EffXA
		return
	}
	switch r.tok.kw {
	case kwSet:
		r.set()
	case kwFlush, kwLock, kwBackup:
		if r.next().kw != kwIn && r.prev.kw != kwFor { // LOCK IN SHARE MODE
			r.body.Effects |= EffTableLock
		}
	case kwPrepare, kwExecute, kwDeallocate, kwImmediate, kwLoad, kwInstall, kwUninstall, kwChange, kwReset, kwStart, kwStop, kwImport, kwBinlog, kwShutdown, kwRestart, kwUse, kwKill:
		if r.tok.kw == kwStart && (r.next().kw == kwTransaction || r.prev.kw == kwXa) {
			return // the status flags report it
		}
		r.body.Effects |= EffOpaque | EffUnknownFunc
	case kwHandler:
		if r.prev.kw == notKeyword && r.prev.kind == tokWord {
			return // EXIT HANDLER, CONTINUE HANDLER
		}
		r.body.Effects |= EffHandler
	case kwTemporary:
		r.body.Effects |= EffUnknownFunc
	case kwCreate, kwAlter, kwDrop, kwRename, kwGrant, kwRevoke:
		r.body.Effects |= EffDDL
	case kwThen, kwElse, kwDo, kwBegin, kwLoop, kwRepeat:
		r.writing = false
	case kwSqlCalcFoundRows, kwSelect, kwDelete:
		r.runs = true
	case kwUpdate:
		r.runs, r.writing = true, r.writing || r.begins()
	case kwInsert, kwReplace:
		r.runs, r.inserts = true, true
		r.writing = r.writing || r.begins()
	case kwFor:
		if r.prev.kw == kwValue && r.past == kwNext {
			r.body.Effects |= EffSequence
		}
		if r.prev.kw == kwValue && r.past == kwPrevious {
			r.body.Effects |= EffSequenceRead
		}
	}
}

// next returns the token after tok.
func (r *bodyReader) next() token {
	ahead := r.lex
	return ahead.next()
}

// begins reports whether a statement of the body certainly begins at tok.
func (r *bodyReader) begins() bool {
	switch r.prev.kind {
	case tokEOF, ';':
		return true
	}
	switch r.prev.kw {
	case kwThen, kwElse, kwDo, kwBegin, kwLoop, kwRepeat:
		return true
	}
	return false
}

// set handles SET, of which only NEW.column and declared variables certainly belong to the
// body.
func (r *bodyReader) set() {
	if r.writing || r.prev.kw == kwCharacter {
		return
	}
	ahead, depth, target := r.lex, 0, true
	for t := ahead.next(); t.kind != ';' && t.kind != tokEOF; t = ahead.next() {
		switch {
		case target:
			r.target(t, ahead)
			target = false
		case t.kind == '(':
			depth++
		case t.kind == ')':
			depth--
		case t.kind == ',' && depth == 0:
			target = true
		case t.kind == tokWord || t.kind == tokQuoted:
			r.variable(unquote(r.text(t))) // SESSION name
		}
	}
}

// target handles the target of an assignment: the name that begins with t.
func (r *bodyReader) target(t token, ahead lexer) {
	name := lowerName(unquote(r.text(t)))
	switch {
	case name == "new" && t.kind == tokWord && ahead.next().kind == '.', t.kind == tokWord && r.locals[name]:
		return
	case t.kw == kwRole:
		r.body.Effects |= EffRole
	case t.kw == kwTransaction, (t.kw == kwSession || t.kw == kwLocal) && ahead.next().kw == kwTransaction:
		r.body.Effects |= EffNextTx
	case t.kw == kwNames, t.kw == kwCharacter, t.kw == kwCharset, t.kw == kwPassword, t.kw == kwDefault, t.kw == kwStatement:
		r.body.Effects |= EffOpaque // servers do not report the collation that comes with it
	case t.kw == kwResource:
		r.body.Effects |= EffGroup
	}
	r.body.Effects |= EffUnknownFunc // servers report settings
	if t.kind == tokSysVar && r.lex.mode.MariaDB && ahead.next().kind != '.' {
		r.body.Effects |= EffOpaque // but not these
	}
	r.variable(strings.TrimPrefix(name, "@@"))
}

// variable handles a name that may be a system variable.
func (r *bodyReader) variable(name string) {
	name = lowerName(name)
	switch {
	case strings.HasPrefix(name, "session_track_"):
		r.body.Effects |= EffOpaque | EffUnknownFunc // it may switch session tracking off
	case name == "last_insert_id" || name == "identity":
		if r.inserted {
			r.body.Effects |= EffUnknownFunc
		} else {
			r.body.Effects |= EffLastID | EffSetLastID | EffUnknownFunc
		}
	case strings.HasPrefix(name, "pseudo_"), strings.HasPrefix(name, "rand_seed"), name == "timestamp", name == "insert_id":
		r.body.Effects |= EffUnknownFunc
	}
}

// bodyWords may precede "(" in bodies without being calls: types, and words that begin or join
// expressions and lists.
var bodyWords = wordSet(`
bigint int integer tinyint smallint mediumint int1 int2 int3 int4 int8 middleint bit year datetime timestamp time text
tinytext mediumtext longtext blob tinyblob mediumblob longblob enum set dec fixed nvarchar nchar character varcharacter
geometry point vector inet4 inet6 uuid varchar2 number raw clob until elseif loop key keys index unique primary
references foreign constraint begin iterate leave cursor values columns rows range partitions hash list linear nested path`)

func wordSet(list string) map[string]bool {
	m := make(map[string]bool)
	for w := range strings.FieldsSeq(list) {
		m[w] = true
	}
	return m
}

// call handles "(".
func (r *bodyReader) call() {
	if r.chain == 0 || r.prev.kind != tokWord && r.prev.kind != tokQuoted {
		return
	}
	kw, chain := r.prev.kw, r.chain
	r.chain = 0
	name := lowerName(unquote(r.text(r.prev)))
	plain := chain == 1 && r.prev.kind == tokWord
	if plain && (kw.has(classGrammar) || bodyWords[name]) {
		return
	}
	switch r.before.kw {
	case kwInto, kwInsert, kwReplace, kwTable, kwIndex, kwAs, kwWith, kwRecursive, kwIgnore:
		if !(plain && kw.isFunction(r.lex.mode)) {
			return // columns
		}
	}
	tight := r.prev.end == r.tok.start
	if !plain || !kw.isFunction(r.lex.mode) || !tight && kw.has(classTight) {
		r.called(name)
		return
	}
	switch e := words.effects[kw]; e {
	case 0, EffSleep, EffSessionRead:
	case EffLastID:
		switch {
		case r.next().kind != ')':
			r.body.Effects |= EffSetLastID | EffUnknownFunc
		case !r.inserted:
			r.body.Effects |= EffLastID
		}
	case EffDiag:
		if !r.ran {
			r.body.Effects |= EffDiag
		}
	default:
		r.body.Effects |= e &^ EffWrites
	}
}

// PreparedText returns the text that PREPARE or EXECUTE IMMEDIATE has as one literal. ok is
// false if it has another form.
func PreparedText(sql string, mode Mode) (text string, ok bool) {
	l := newLexer(sql, mode)
	var prev keyword
	for t := l.next(); t.kind != tokEOF; t = l.next() {
		if t.kind == tokString && (prev == kwFrom || prev == kwImmediate) {
			literal := sql[t.start:t.end]
			next := l.next()
			if literal[0] != '\'' && literal[0] != '"' || next.kind != tokEOF && next.kind != ';' && next.kw != kwUsing {
				return "", false
			}
			return unquoteString(literal, mode)
		}
		prev = t.kw
	}
	return "", false
}

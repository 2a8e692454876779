package sqlscan

import (
	"slices"
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// This file finds the names in a text, for callers that know from the server's catalogue
// what the objects of these names do.

// A Reading says how far the names of a text could be read.
type Reading struct {
	// Foreign: a name holds bytes above 127. Which letters they are depends on the
	// session's encoding.
	Foreign bool
	// Unreadable: a name is written with Unicode escapes, or a token of the text is unterminated.
	Unreadable bool
}

// Names looks up every identifier of a text, with or without quotes, in table,
// whose keys are names as the server stores them, and calls hit for those that
// are there; a name that occurs twice is hit twice. It may hit too
// many: keywords count, too, unless they are reserved. It allocates nothing.
func Names[V any](sql string, table map[string]V, hit func(name string, v V)) Reading {
	return names(lexer{sql: sql}, table, hit)
}

func names[V any](lex lexer, table map[string]V, hit func(name string, v V)) (r Reading) {
	var buf [maxName]byte
	for {
		t := lex.next()
		switch t.kind {
		case tokEOF:
			r.Unreadable = r.Unreadable || lex.broken
			return r
		case tokWord, tokQuoted:
			if t.kind == tokWord && (t.kw.isReserved() || len(table) == 0 && t.kw != notKeyword) {
				continue
			}
			n := r.name(lex.sql, t, &buf)
			if v, ok := table[string(buf[:n])]; ok && n > 0 {
				hit(string(buf[:n]), v)
			}
		}
	}
}

// EachName calls hit for every identifier that Names would look up.
func EachName(sql string, hit func(name []byte)) (r Reading) {
	var buf [maxName]byte
	lex := lexer{sql: sql}
	for {
		t := lex.next()
		switch t.kind {
		case tokEOF:
			r.Unreadable = r.Unreadable || lex.broken
			return r
		case tokWord, tokQuoted:
			if t.kind == tokWord && t.kw.isReserved() {
				continue
			}
			if n := r.name(sql, t, &buf); n > 0 {
				hit(buf[:n])
			}
		}
	}
}

const maxName = 63 // NAMEDATALEN - 1

// name writes an identifier to buf as the server stores it, and returns its length; 0
// if it cannot be read.
func (r *Reading) name(sql string, t token, buf *[maxName]byte) (n int) {
	if t.kind == tokWord {
		for i := t.start; i < t.end; i++ {
			c := lexicon.Fold[sql[i]]
			r.Foreign = r.Foreign || c >= 0x80
			if n < maxName {
				buf[n] = c
				n++
			}
		}
		return n
	}
	if sql[t.start] != '"' {
		r.Unreadable = true
		return 0
	}
	for i := t.start + 1; i < t.end-1; i++ {
		r.Foreign = r.Foreign || sql[i] >= 0x80
		if n < maxName {
			buf[n] = sql[i]
			n++
		}
		if sql[i] == '"' {
			i++
		}
	}
	return n
}

// isReserved reports whether a word is a keyword that cannot be the name of
// anything without quotes.
func (k keyword) isReserved() bool { return k != notKeyword && k < kwBetween }

// A Touched is a setting that a text changes by name.
type Touched struct {
	Name  string // in lower case
	Local bool   // until the transaction ends
}

// Custom reports whether the name of a setting is one that a session may invent: one in
// two parts. Once it has been set, it exists, if only as an empty value, until the session
// ends; a session in which it was never set answers differently when asked for it.
func Custom(name string) bool { return strings.Contains(name, ".") }

// Settings returns the settings that the calls of set_config in a text name. all
// is false if one of them names it other than by a plain literal.
func Settings(sql string) (names []Touched, all bool) { return settings(lexer{sql: sql}) }

func settings(lex lexer) (names []Touched, all bool) {
	all = true
	var prev token
	for t := lex.next(); t.kind != tokEOF; t = lex.next() {
		if t.kind == '(' && isSetConfig(lex.sql, prev) {
			name, ok := firstLiteral(lex)
			if !ok {
				all = false
			} else {
				s := observer{lex: lex}
				names = append(names, Touched{Name: name, Local: s.localConfig()})
			}
		}
		prev = t
	}
	return names, all && !lex.broken
}

func isSetConfig(sql string, t token) bool {
	switch t.kind {
	case tokWord:
		return lexicon.EqualFold(sql[t.start:t.end], "set_config")
	case tokQuoted:
		return sql[t.start:t.end] == `"set_config"`
	}
	return false
}

// firstLiteral returns the first argument of a call if it is a plain literal.
func firstLiteral(lex lexer) (string, bool) {
	t := lex.next()
	if t.kind != tokString || lex.sql[t.start] != '\'' || lex.next().kind != ',' {
		return "", false
	}
	name := lex.sql[t.start+1 : t.end-1]
	for i := range len(name) {
		if c := lexicon.Fold[name[i]]; (c == 0 || c >= 0x80) && name[i] != '.' && name[i] != ' ' {
			return "", false
		}
	}
	return lexicon.Lower(name), name != ""
}

// HarmlessFunction reports whether the scanner assumes that no function of pg_catalog
// with this name does anything to a session. If not, it returns the known effects, or
// EffUnknownFunc if none are known.
func HarmlessFunction(name string) (Effect, bool) {
	if name == "set_config" {
		return EffSetConfig, false
	}
	e := functionEffects(name, false)
	return e, e == 0
}

// SettingEffects returns the effects of changing a setting by SET or set_config: EffSet
// if its value can be read from the server and set again.
func SettingEffects(name string) Effect { return settingEffects(name) }

// A Routine is what the body of a function or procedure may do.
type Routine struct {
	Effects Effect
	Touches []Touched // settings that it changes by name
}

// RoutineSQL reads the body of a function in SQL, given as text. It does not
// include the effects of functions that the body calls, which are among its names.
func RoutineSQL(body string) (r Routine) {
	info := Scan(body)
	r.Effects = info.Effects &^ (EffUnknownFunc | EffMulti | EffBackslash | EffSetConfig | EffSet | EffSetUnknown)
	r.reads(body)
	return r
}

// RoutinePLpgSQL reads the body of a function or a DO in PL/pgSQL.
func RoutinePLpgSQL(body string) (r Routine) {
	r.reads(body)
	return r
}

// routineWord returns the effects of a word that does something to a session wherever it
// stands in a routine. If it is only a name there, that errs on the safe side.
func routineWord(kw keyword) Effect {
	switch kw {
	case kwExecute, kwDiscard, kwDo:
		return EffUnknownFunc // runs what the text does not show
	case kwListen, kwUnlisten:
		return EffListen | EffRelease
	case kwLoad:
		return EffLoad
	case kwPrepare, kwDeallocate:
		return EffPrepare
	case kwHold:
		return EffHold
	case kwTemp, kwTemporary:
		return EffTemp
	case kwInsert, kwUpdate, kwDelete, kwMerge, kwTruncate, kwCopy:
		return EffWrites
	case kwLock, kwShare:
		return EffLockRows
	case kwCreate, kwAlter, kwDrop, kwImport, kwGrant, kwRevoke, kwReassign, kwRefresh:
		return EffDDL | EffTemp
	}
	return 0
}

// reads adds the effects of the words of a body.
func (r *Routine) reads(body string) {
	lex := lexer{sql: body}
	var prev token
	for t := lex.next(); t.kind != tokEOF; t = lex.next() {
		if t.kind == tokWord && prev.kind != '.' {
			ahead := lex
			if next := ahead.next(); t.kw != kwDo || next.kw != kwNothing && next.kw != kwUpdate { // of ON CONFLICT
				r.Effects |= routineWord(t.kw)
			}
			switch t.kw {
			case kwSet:
				if beginsCommand(body, prev) {
					r.set(lex)
				}
			case kwReset:
				r.set(lex)
			case kwFunction, kwProcedure, kwExtension, kwLanguage, kwRoutine, kwForeign, kwEvent, kwServer:
				if prev.kw == kwCreate || prev.kw == kwReplace || prev.kw == kwAlter || prev.kw == kwImport {
					r.Effects |= EffUnknownFunc
				}
			}
		}
		if t.kind == tokWord || t.kind == tokQuoted {
			name := fold(body[t.start:t.end])
			if strings.HasPrefix(name, "pg_temp") {
				r.Effects |= EffTemp
			}
		}
		prev = t
	}
	if lex.broken {
		r.Effects |= EffUnknownFunc
	}
	names, all := Settings(body)
	r.Touches = append(r.Touches, names...)
	if !all {
		r.Effects |= EffSetConfig
	}
}

// beginsCommand reports whether a command may follow prev in PL/pgSQL: SET does
// not follow the name of a table, as that of UPDATE does.
func beginsCommand(body string, prev token) bool {
	switch prev.kind {
	case tokQuoted, ')', '*':
		return false
	case tokWord:
		return slices.Contains(commandStarts[:], prev.kw) || lexicon.EqualFold(body[prev.start:prev.end], "loop")
	}
	return true
}

var commandStarts = [...]keyword{kwBegin, kwThen, kwElse, kwDo}

// set reads SET or RESET in a body, of which lex has read the first word.
func (r *Routine) set(lex lexer) {
	t := lex.next()
	local := false
	switch t.kw {
	case kwConstraints, kwTransaction:
		return
	case kwLocal:
		local = true
		t = lex.next()
	case kwSession:
		t = lex.next()
		switch t.kw {
		case kwAuthorization, kwSession:
			r.Effects |= EffRole
			return
		case kwCharacteristics:
			r.Effects |= EffSetUnknown
			return
		}
	}
	switch t.kw {
	case kwRole:
		r.Effects |= EffRole
		return
	case kwTransaction:
		return
	case kwAll, kwTime, kwXml, kwNames, kwSchema:
		r.Effects |= EffSetUnknown
		return
	}
	if t.kind != tokWord && t.kind != tokQuoted {
		r.Effects |= EffSetUnknown
		return
	}
	name := lexicon.Lower(fold(lex.sql[t.start:t.end]))
	for t = lex.next(); t.kind == '.'; t = lex.next() {
		t = lex.next()
		if t.kind != tokWord && t.kind != tokQuoted {
			r.Effects |= EffSetUnknown
			return
		}
		name += "." + lexicon.Lower(fold(lex.sql[t.start:t.end]))
	}
	switch e := settingEffects(name); e {
	case EffSet:
		r.Touches = append(r.Touches, Touched{Name: name, Local: local})
	default:
		r.Effects |= e
	}
}

// DoBody returns the code of a text that is one DO in PL/pgSQL, where it can be
// read.
func DoBody(sql string) (body string, ok bool) {
	lex := lexer{sql: sql}
	if t := lex.next(); t.kw != kwDo || t.kind != tokWord {
		return "", false
	}
	for t := lex.next(); ; t = lex.next() {
		switch {
		case t.kind == tokEOF, t.kind == ';' && lex.next().kind == tokEOF:
			return body, ok && !lex.broken
		case t.kind == tokString && !ok:
			body, ok = plainLiteral(sql[t.start:t.end])
			if !ok {
				return "", false
			}
		case t.kind == tokWord && t.kw == kwLanguage:
			if t = lex.next(); !lexicon.EqualFold(sql[t.start:t.end], "plpgsql") {
				return "", false
			}
		default:
			return "", false
		}
	}
}

// plainLiteral returns the content of a literal in dollar quotes, or in quotes without
// escapes.
func plainLiteral(lit string) (string, bool) {
	switch {
	case strings.HasPrefix(lit, "$"):
		n := strings.IndexByte(lit[1:], '$') + 2
		if len(lit) < 2*n {
			return "", false
		}
		return lit[n : len(lit)-n], true
	case strings.HasPrefix(lit, "'") && !strings.Contains(lit, "\\") && len(lit) >= 2:
		body := lit[1 : len(lit)-1]
		if strings.Contains(strings.ReplaceAll(body, "''", ""), "'") {
			return "", false // in pieces
		}
		return strings.ReplaceAll(body, "''", "'"), true
	}
	return "", false
}

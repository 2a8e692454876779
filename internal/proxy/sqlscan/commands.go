package sqlscan

import (
	"strings"
	"unicode/utf8"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// verbEffects are the effects of a command with any arguments.
var verbEffects = [verbCount]Effect{
	VerbInsert: EffWrites, VerbUpdate: EffWrites, VerbDelete: EffWrites, VerbMerge: EffWrites,
	VerbBegin: EffTx, VerbCommit: EffTx, VerbRollback: EffTx, VerbSavepoint: EffTx,
	VerbRelease: EffTx, VerbRollbackTo: EffTx, VerbPrepareTx: EffTx,
	VerbCommitPrepared: EffTx, VerbRollbackPrepared: EffTx,
	VerbReset: EffRelease, VerbCopy: EffCopy, VerbListen: EffListen, VerbUnlisten: EffRelease,
	VerbPrepare: EffPrepare, VerbExecute: EffPrepare, VerbDeallocate: EffRelease,
	VerbDiscard: EffRelease, VerbClose: EffRelease, VerbDo: EffUnknownFunc,
	VerbCall: EffUnknownFunc, VerbDDL: EffDDL, VerbLoad: EffLoad,
}

// verbOf returns the verb of a command that is no query.
func verbOf(kw keyword) Verb {
	switch kw {
	case kwBegin, kwStart:
		return VerbBegin
	case kwCommit, kwEnd:
		return VerbCommit
	case kwRollback, kwAbort:
		return VerbRollback
	case kwSavepoint:
		return VerbSavepoint
	case kwRelease:
		return VerbRelease
	case kwSet:
		return VerbSet
	case kwReset:
		return VerbReset
	case kwShow:
		return VerbShow
	case kwCopy:
		return VerbCopy
	case kwListen:
		return VerbListen
	case kwUnlisten:
		return VerbUnlisten
	case kwNotify:
		return VerbNotify
	case kwPrepare:
		return VerbPrepare
	case kwExecute:
		return VerbExecute
	case kwDeallocate:
		return VerbDeallocate
	case kwDiscard:
		return VerbDiscard
	case kwDeclare:
		return VerbDeclare
	case kwFetch:
		return VerbFetch
	case kwMove:
		return VerbMove
	case kwClose:
		return VerbClose
	case kwLock:
		return VerbLock
	case kwExplain:
		return VerbExplain
	case kwDo:
		return VerbDo
	case kwCall:
		return VerbCall
	case kwCreate, kwAlter, kwDrop, kwTruncate, kwComment, kwGrant, kwRevoke,
		kwSecurity, kwReassign, kwImport, kwRefresh:
		return VerbDDL
	case kwVacuum, kwAnalyze, kwAnalyse, kwCluster, kwReindex, kwCheckpoint:
		return VerbVacuum
	case kwLoad:
		return VerbLoad
	}
	return VerbOther
}

// statement reads one statement; tok is its first token at the call, and its end
// afterwards.
func (s *scanner) statement() {
	for s.Expect && !s.done() {
		s.next()
	}
	s.command()
	if s.verb == VerbOther {
		s.effects |= EffUnknown
	}
	s.skip()
}

// command handles the beginning of the command whose first word is tok.
func (s *scanner) command() {
	switch s.verb {
	case VerbRollback:
		s.rollback()
	case VerbCommit:
		s.next()
		if s.is(kwPrepared) {
			s.verb = VerbCommitPrepared
		}
	case VerbSet:
		s.setCommand()
	case VerbReset:
		s.resetCommand()
	case VerbShow:
		s.show()
	case VerbCopy:
		s.copyCommand()
	case VerbPrepare:
		s.prepare()
	case VerbListen, VerbUnlisten, VerbExecute, VerbClose:
		s.next()
		if !(s.verb == VerbClose && s.is(kwAll)) {
			s.takeName()
		}
	case VerbDeallocate:
		s.deallocate()
	case VerbDiscard:
		s.next()
		if s.is(kwAll) {
			s.effects |= EffDiscardAll
		} else {
			s.takeName()
		}
	case VerbDeclare:
		s.declare()
	case VerbFetch, VerbMove:
		s.calls = false
		s.skip()
		s.tok, s.prev = s.prev, s.tok
		s.takeName()
		s.tok, s.prev = s.prev, s.tok
	case VerbExplain:
		s.explain()
	case VerbDDL:
		s.definition()
	case VerbVacuum, VerbLock:
		s.calls = false
	}
}

// takeName takes tok as the name of the statement's object.
func (s *scanner) takeName() {
	if s.tok.kind == tokWord || s.tok.kind == tokQuoted {
		s.name = fold(s.text(s.tok))
	}
}

// fold returns an identifier as the server stores it.
func fold(name string) string {
	if strings.HasPrefix(name, `"`) {
		name = strings.TrimSuffix(name[1:], `"`)
		if strings.Contains(name, `""`) {
			name = strings.ReplaceAll(name, `""`, `"`)
		}
	} else {
		name = lexicon.Lower(name)
	}
	const most = 63 // NAMEDATALEN - 1
	if len(name) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut]
	}
	return name
}

func (s *scanner) rollback() {
	s.next()
	if s.is(kwPrepared) {
		s.verb = VerbRollbackPrepared
		return
	}
	if s.is(kwWork, kwTransaction) {
		s.next()
	}
	if s.is(kwTo) {
		s.verb = VerbRollbackTo
	}
}

func (s *scanner) show() {
	s.next()
	if s.tok.kind == tokWord && lexicon.EqualFold(s.text(s.tok), "weir") {
		s.next()
		if s.tok.kind == tokWord && lexicon.EqualFold(s.text(s.tok), "status") {
			s.next()
			if s.done() {
				s.effects |= EffWeirShow
				return
			}
		}
	}
	s.effects |= EffSessionRead
}

// copyCommand handles both forms of COPY. Parentheses after a table's
// name hold columns or options; functions occur only in WHERE.
func (s *scanner) copyCommand() {
	s.calls = false
	s.next()
	if s.tok.kind == '(' {
		s.calls = true // COPY (query) TO
		return
	}
	for !s.done() {
		if s.Depth == 0 {
			switch {
			case s.is(kwFrom):
				s.effects |= EffWrites
			case s.is(kwWhere):
				s.calls = true
			}
		}
		s.next()
	}
}

// prepare handles PREPARE TRANSACTION and PREPARE name [(types)] AS statement.
func (s *scanner) prepare() {
	s.next()
	s.takeName()
	if s.is(kwTransaction) {
		s.next()
		if s.tok.kind == tokString {
			s.verb, s.name = VerbPrepareTx, ""
			s.effects = s.effects&^EffPrepare | EffTx
			return
		}
	}
	s.calls = false
	for !s.done() && !(s.is(kwAs) && s.Depth == 0) {
		s.next()
	}
	s.calls = true
	if !s.done() {
		s.next()
		s.inner(VerbPrepare)
	}
}

// explain handles EXPLAIN [ANALYZE] [VERBOSE] and EXPLAIN (options).
func (s *scanner) explain() {
	s.next()
	if s.tok.kind == '(' {
		s.next()
		if s.tok.kind != '(' && !s.is(kwSelect, kwWith, kwValues, kwTable) {
			for !s.done() && s.Depth > 0 {
				s.next()
			}
			if !s.done() {
				s.next()
			}
		}
	}
	for s.is(kwAnalyze, kwAnalyse, kwVerbose) {
		s.next()
	}
	s.inner(VerbExplain)
}

// inner handles the statement that begins at tok within another one.
func (s *scanner) inner(outer Verb) {
	for s.tok.kind == '(' {
		s.next()
	}
	if s.done() {
		return
	}
	s.BeginInner()
	s.verb = VerbOther
	name := s.name
	if s.tok.kind == tokWord && s.tok.kw != notKeyword {
		s.observeKeyword()
	}
	for s.Expect && !s.done() {
		s.next()
	}
	if s.verb != VerbExplain && s.verb != VerbPrepare { // they do not nest
		s.command()
		s.skip()
	}
	s.verb = outer
	if outer == VerbPrepare {
		s.name = name
	}
}

func (s *scanner) declare() {
	s.next()
	s.takeName()
	for !s.done() && !(s.is(kwFor) && s.Depth == 0) {
		if s.is(kwHold) && s.prev.kw == kwWith {
			s.effects |= EffHold
		}
		s.next()
	}
}

func (s *scanner) deallocate() {
	s.next()
	if s.is(kwPrepare) {
		first := s.tok
		s.next()
		if s.done() {
			s.name = fold(s.text(first))
			return
		}
	}
	if s.is(kwAll) {
		s.effects |= EffDeallocateAll
		return
	}
	s.takeName()
}

// definition handles the commands of VerbDDL. Names before "(" are tables,
// types and indexes; functions run only in the query of CREATE TABLE AS and
// the like, which follows AS.
func (s *scanner) definition() {
	s.calls = false
	switch s.tok.kw {
	case kwDrop:
		s.effects |= EffRelease
	case kwTruncate:
		s.effects |= EffWrites
	case kwCreate:
		s.next()
		for s.is(kwOr, kwReplace, kwGlobal, kwLocal, kwTemp, kwTemporary, kwUnlogged, kwRecursive) {
			if s.is(kwTemp, kwTemporary) {
				s.effects |= EffTemp
			}
			s.next()
		}
		s.asRuns = s.is(kwTable, kwMaterialized)
		s.routine = s.is(kwFunction, kwProcedure)
		if s.is(kwTable) {
			for !s.done() && !(s.is(kwExecute) && s.prev.kw == kwAs) {
				s.next()
			}
			if !s.done() { // CREATE TABLE AS EXECUTE
				s.next()
				s.takeName()
			}
		}
	}
}

// setCommand handles SET. Its grammar is that of VariableSetStmt.
func (s *scanner) setCommand() {
	c := SetClause{}
	s.next()
	if s.accept(kwConstraints) {
		s.effects |= EffTx
		return
	}
	switch {
	case s.is(kwLocal):
		c.Local = true
		s.next()
	case s.is(kwSession):
		s.next()
		if s.is(kwCharacteristics) {
			s.effects |= EffSetUnknown
			return
		}
		if s.is(kwAuthorization) {
			s.effects |= EffRole
			return
		}
		c.Session = true
	}
	switch {
	case s.is(kwTransaction):
		s.effects |= EffTx
		return
	case s.is(kwRole):
		s.effects |= EffRole
		return
	case s.is(kwSession): // SET SESSION SESSION AUTHORIZATION
		s.effects |= EffRole
		return
	case s.is(kwTime):
		s.special(&c, "timezone", kwZone)
	case s.is(kwXml):
		s.special(&c, "xmloption", kwOption)
	case s.is(kwNames):
		s.special(&c, "client_encoding", notKeyword)
	case s.is(kwSchema):
		s.special(&c, "search_path", notKeyword)
	default:
		s.generic(&c)
	}
	s.set = c
}

// special handles SET TIME ZONE and the like; second is the second word of the
// name. A word that turns out to be the name of a setting is handed to generic.
func (s *scanner) special(c *SetClause, name string, second keyword) {
	first := s.tok
	s.next()
	if s.tok.kind == '.' || s.is(kwTo, kwFrom) || s.tok.kind == tokOp || second != notKeyword && !s.is(second) {
		s.rest(c, lexicon.Lower(s.text(first)))
		return
	}
	if second != notKeyword {
		s.next()
	}
	c.Name = name
	if s.is(kwInterval) {
		s.effects |= EffSetUnknown // only SET TIME ZONE has this form
	}
	if s.done() && name == "client_encoding" {
		c.Default = true
		s.effects |= EffSet
		return
	}
	s.value(c)
	if name == "timezone" && strings.EqualFold(c.Value, "local") {
		c.Default, c.Value = true, ""
	}
}

func (s *scanner) generic(c *SetClause) {
	if s.tok.kind != tokWord && s.tok.kind != tokQuoted {
		s.effects |= EffSetUnknown
		return
	}
	first := lexicon.Lower(fold(s.text(s.tok)))
	s.next()
	s.rest(c, first)
}

// rest handles what follows the first part of a setting's name.
func (s *scanner) rest(c *SetClause, first string) {
	c.Name = s.dotted(first)
	if !s.is(kwTo) && (s.tok.kind != tokOp || s.text(s.tok) != "=") {
		s.effects |= EffSetUnknown // FROM CURRENT, or a syntax error
		return
	}
	s.next()
	s.value(c)
}

// dotted reads the further parts of a setting's name. No real one is longer
// than a few identifiers.
func (s *scanner) dotted(name string) string {
	const most = 256
	for s.tok.kind == '.' {
		if len(name) > most {
			s.effects |= EffSetUnknown
			break
		}
		s.next()
		if s.tok.kind != tokWord && s.tok.kind != tokQuoted {
			break
		}
		name += "." + lexicon.Lower(fold(s.text(s.tok)))
		s.next()
	}
	return name
}

// value takes the rest of the statement as the value of the setting.
func (s *scanner) value(c *SetClause) {
	start, isDefault, words := s.tok.start, s.is(kwDefault), 0
	for !s.done() {
		s.next()
		words++
	}
	if words == 0 {
		s.effects |= EffSetUnknown
		return
	}
	if isDefault && words == 1 {
		c.Default = true
	} else {
		c.Value = s.lex.sql[start:s.prev.end]
	}
	s.effects |= settingEffects(c.Name)
}

// settingEffects returns the effects of SET or RESET that depend on the setting.
func settingEffects(name string) Effect {
	switch name {
	case "role", "session_authorization":
		return EffRole
	case "seed":
		return EffSetUnknown | EffSeed
	case "transaction_isolation", "transaction_read_only", "transaction_deferrable":
		return EffTx
	}
	return EffSet
}

func (s *scanner) resetCommand() {
	c := SetClause{Reset: true}
	s.next()
	switch {
	case s.done():
		s.effects |= EffSetUnknown
		return
	case s.is(kwAll):
		c.All = true
		s.effects |= EffSet
	case s.is(kwSession):
		s.effects |= EffRole
		return
	case s.is(kwTransaction):
		s.effects |= EffTx
		return
	default:
		first := lexicon.Lower(fold(s.text(s.tok)))
		if s.accept(kwTime) && s.is(kwZone) {
			first = "timezone"
		} else if s.prev.kw != kwTime {
			s.next()
		}
		c.Name = s.dotted(first)
		s.effects |= settingEffects(c.Name)
	}
	s.set = c
}

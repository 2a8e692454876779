package myscan

import "strconv"

// verbEffects are the effects that a command has whatever its arguments.
var verbEffects = [verbCount]Effect{
	VerbInsert: EffWrites, VerbReplace: EffWrites, VerbUpdate: EffWrites, VerbDelete: EffWrites,
	VerbBegin: EffTxBegin | EffImplicitCommit, VerbCommit: EffTxEnd, VerbRollback: EffTxEnd,
	VerbSavepoint: EffSavepoint, VerbRelease: EffSavepoint, VerbXA: EffXA,
	VerbUse: EffUse, VerbUnlock: EffRelease,
	VerbPrepare: EffPrepare, VerbExecute: EffPrepare | EffUnknownFunc, VerbDeallocate: EffRelease,
	VerbCall: EffUnknownFunc, VerbHandler: EffHandler, VerbLoad: EffLoad | EffWrites, VerbKill: EffAdmin,
	VerbDDL: EffDDL | EffImplicitCommit, VerbMaintain: EffAdmin | EffImplicitCommit,
	VerbAdmin: EffAdmin | EffImplicitCommit, VerbDiagnose: EffDiag,
}

// command handles the beginning of a command; tok is its first word.
func (s *scanner) command() {
	switch s.verb {
	case VerbBegin:
		s.begin()
	case VerbCommit, VerbRollback:
		s.endOfTransaction()
	case VerbSavepoint:
		s.next()
		s.takeName()
	case VerbRelease:
		s.next()
		s.accept(kwSavepoint)
		s.takeName()
	case VerbSet:
		s.setCommand()
	case VerbUse, VerbPrepare:
		s.next()
		s.takeName()
	case VerbExecute:
		s.execute()
	case VerbDeallocate:
		s.next()
		s.accept(kwPrepare)
		s.takeName()
	case VerbShow:
		s.show()
	case VerbExplain:
		s.explain()
	case VerbLock:
		s.lock()
	case VerbUnlock:
		if s.next(); s.is(kwTables, kwTable) {
			s.effects |= EffImplicitCommit
		}
	case VerbHandler:
		s.handler()
	case VerbLoad:
		s.load()
	case VerbKill:
		s.killCommand()
	case VerbDDL:
		s.definition()
	case VerbMaintain:
		if s.is(kwChecksum) {
			s.effects &^= EffImplicitCommit
		}
		s.inert = true
	case VerbAdmin:
		s.admin()
	case VerbDiagnose:
		s.diagnose()
	case VerbCompound:
		s.compound()
	}
}

// takeName takes tok as the name of the statement's object.
func (s *scanner) takeName() {
	if s.tok.kind == tokWord || s.tok.kind == tokQuoted {
		s.name = unquote(s.text(s.tok))
	}
}

// begin handles BEGIN [WORK] and BEGIN NOT ATOMIC.
func (s *scanner) begin() {
	s.next()
	if s.accept(kwWork) || s.done() {
		return
	}
	s.verb = VerbCompound
	s.compound()
	s.blocks++
}

// compound handles statements within a statement. It does not determine their effects.
func (s *scanner) compound() {
	s.routine, s.inert = true, true
	s.effects |= EffUnknown
	switch s.tok.kw {
	case kwIf, kwCase, kwLoop, kwWhile, kwRepeat, kwFor:
		s.blocks++
	}
}

// endOfTransaction handles the options of COMMIT and ROLLBACK.
func (s *scanner) endOfTransaction() {
	s.next()
	s.accept(kwWork)
	if s.verb == VerbRollback && s.accept(kwTo) {
		s.verb, s.effects = VerbRollbackTo, s.effects&^EffTxEnd|EffSavepoint
		s.accept(kwSavepoint)
		s.takeName()
		return
	}
	for !s.done() {
		no := s.prev.kw == kwNo
		if s.equalWord("chain") && !no {
			s.effects |= EffTxBegin
		}
		if s.is(kwRelease) && !no {
			s.effects |= EffQuit
		}
		s.next()
	}
}

// execute handles EXECUTE name [USING ...] and EXECUTE IMMEDIATE.
func (s *scanner) execute() {
	s.next()
	if s.is(kwImmediate) && s.nextByte() != 0 && !s.endsNext() && !s.usingNext() {
		s.effects &^= EffPrepare
		return
	}
	s.takeName()
}

// endsNext reports whether the statement ends after tok.
func (s *scanner) endsNext() bool {
	ahead := s.lex
	kind := ahead.next().kind
	return kind == tokEOF || kind == ';'
}

// usingNext reports whether USING follows tok.
func (s *scanner) usingNext() bool {
	ahead := s.lex
	return ahead.next().kw == kwUsing
}

// show handles SHOW.
func (s *scanner) show() {
	s.next()
	s.takeName()
	if s.equalWord("weir") {
		s.next()
		if s.is(kwStatus) {
			s.next()
			if s.done() {
				s.effects |= EffWeirShow
			}
		}
		return
	}
	global := s.is(kwGlobal)
	if s.is(kwGlobal, kwSession, kwLocal, kwFull) || s.equalWord("extended") {
		s.next()
	}
	switch s.tok.kw {
	case kwStatus:
		if !global {
			s.effects |= EffSessionRead
		}
	case kwVariables:
		s.effects |= EffSysVar
		if !global {
			s.showVariables()
		}
	case kwWarnings, kwErrors:
		s.effects |= EffDiag
	case kwCount: // COUNT(*) WARNINGS
		s.effects |= EffDiag
		s.inert = true
	case kwProfile, kwProfiles, kwProcesslist:
		s.effects |= EffSessionRead
	case kwExplain, kwAnalyze: // SHOW EXPLAIN FOR a connection
		s.effects |= EffSessionRead
	}
}

// showVariables handles SHOW [SESSION] VARIABLES. Without a pattern it includes variables that
// are no settings; a pattern without wildcards names one.
func (s *scanner) showVariables() {
	s.next()
	if s.accept(kwLike) && s.tok.kind == tokString {
		pattern, ok := unquoteString(s.text(s.tok), s.lex.mode)
		for i := range len(pattern) {
			ok = ok && pattern[i] != '%'
		}
		if ok {
			s.effects |= readingVariable(pattern)
			return
		}
	}
	s.effects |= EffSessionRead
}

// explain handles EXPLAIN and DESCRIBE of a table or of a statement, and ANALYZE
// of tables or, in MariaDB, of a statement.
func (s *scanner) explain() {
	analyze := s.is(kwAnalyze)
	s.next()
	if analyze && (s.is(kwTable, kwTables, kwLocal) || s.equalWord("no_write_to_binlog")) {
		s.verb, s.inert = VerbMaintain, true
		s.effects |= verbEffects[VerbMaintain]
		return
	}
	for !s.done() {
		switch {
		case s.is(kwAnalyze) || s.equalWord("extended") || s.equalWord("partitions"):
			s.next()
		case s.is(kwFormat):
			s.next()
			if s.tok.kind == tokOp {
				s.next()
			}
			s.next()
		case s.is(kwInto) || s.tok.kind == tokUserVar: // EXPLAIN ... INTO @x, MySQL
			s.next()
		case s.is(kwFor):
			s.next()
			if s.is(kwConnection) {
				s.effects |= EffSessionRead
				return
			}
			s.next() // FOR DATABASE name
			s.next()
		default:
			s.inner(VerbExplain)
			return
		}
	}
}

// inner handles the statement that begins at tok within another one. Its verb becomes that of
// the whole, unless an outer one is given.
func (s *scanner) inner(outer Verb) {
	for s.tok.kind == '(' {
		s.next()
	}
	s.BeginInner()
	s.verb = VerbOther
	switch kw := s.tok.kw; {
	case s.done():
	case outer == VerbExplain && kw != kwWith && queryVerb(kw) == VerbOther: // DESCRIBE table
		s.Expect = false
	case kw != notKeyword && kw <= lastKeyword:
		s.observeKeyword()
	}
	for s.Expect && !s.done() {
		s.next()
	}
	switch s.verb {
	case VerbExplain: // does not nest
	case VerbSet: // as SET STATEMENT ... FOR SET: not worth parsing
		s.effects |= EffSet | EffSetUnknown | EffUnknown
	default:
		s.command()
	}
	if outer != VerbOther {
		s.verb = outer
	}
}

// lock handles LOCK TABLES, LOCK INSTANCE and BACKUP.
func (s *scanner) lock() {
	s.effects |= EffTableLock
	backup := s.is(kwBackup)
	s.next()
	if !backup {
		if !s.is(kwInstance) {
			s.effects |= EffImplicitCommit
		}
		s.inert = true
		return
	}
	if s.is(kwUnlock) {
		s.verb, s.effects = VerbUnlock, s.effects&^EffTableLock|EffRelease
		return
	}
	if s.is(kwStage) {
		s.next()
		if s.is(kwEnd) {
			s.effects |= EffRelease
		}
	}
}

// handler handles HANDLER name OPEN, READ and CLOSE.
func (s *scanner) handler() {
	for !s.done() && !s.is(kwOpen, kwClose, kwRead) {
		s.next()
	}
	if s.is(kwClose) {
		s.effects |= EffRelease
	}
}

// load handles LOAD DATA, LOAD XML and LOAD INDEX INTO CACHE.
func (s *scanner) load() {
	s.next()
	if s.is(kwIndex) {
		s.verb, s.inert = VerbMaintain, true
		s.effects = s.effects&^(EffLoad|EffWrites) | verbEffects[VerbMaintain]
		return
	}
	for !s.done() && !s.is(kwTable) {
		if s.is(kwLocal) {
			s.effects |= EffLocal
		}
		s.next()
	}
	// The columns may be user variables, which LOAD then writes.
	s.target, s.MainDepth = true, s.Depth
	for !s.done() && !s.is(kwSet) {
		if s.tok.kind == tokUserVar {
			s.effects |= EffUserVarWrite
		}
		s.next()
	}
}

// killCommand handles KILL [HARD|SOFT] [CONNECTION|QUERY [ID]] victim.
func (s *scanner) killCommand() {
	s.next()
	if s.is(kwHard, kwSoft) {
		s.next()
	}
	switch {
	case s.is(kwQuery):
		s.kill.Query = true
		s.next()
		if s.is(kwId) {
			s.kill.QueryID = true
			s.next()
		}
	case s.is(kwConnection):
		s.next()
	}
	if s.tok.kind != tokNumber || !s.endsNext() {
		return
	}
	id, err := strconv.ParseUint(s.text(s.tok), 10, 64)
	if err == nil {
		s.kill.ID, s.kill.Start, s.kill.End = id, int(s.tok.start), int(s.tok.end)
	}
}

// definition handles the commands of VerbDDL. None of their text runs except the query of
// CREATE TABLE ... SELECT.
func (s *scanner) definition() {
	first := s.tok.kw
	s.inert = true
	s.next()
	temporary := false
	switch first {
	case kwTruncate:
		s.effects |= EffWrites | EffRelease
	case kwDrop:
		s.effects |= EffRelease
		if s.is(kwPrepare) {
			s.verb, s.effects = VerbDeallocate, s.effects&^(EffDDL|EffImplicitCommit)
			s.next()
			s.takeName()
			return
		}
		temporary = s.is(kwTemporary)
	case kwCreate:
		if s.accept(kwOr) {
			s.accept(kwReplace)
		}
		if s.is(kwTemporary) {
			temporary = true
			s.effects |= EffTemp
			s.next()
		}
		s.asRuns = s.is(kwTable)
		s.createRoutine()
	case kwAlter:
		s.createRoutine()
	}
	if temporary {
		s.effects &^= EffDDL | EffImplicitCommit
	}
}

// createRoutine checks whether the command defines a stored routine: DEFINER = user, AGGREGATE
// and the like may stand before its kind.
func (s *scanner) createRoutine() {
	for !s.done() && s.Depth == 0 {
		switch s.tok.kw {
		case kwProcedure, kwFunction, kwTrigger, kwEvent, kwPackage:
			s.routine = true
			return
		case kwTable, kwView, kwUser, kwRole, kwDatabase, kwIndex:
			return
		}
		s.next()
	}
}

// admin handles the commands of VerbAdmin.
func (s *scanner) admin() {
	switch first := s.tok.kw; first {
	case kwStart:
		s.next()
		if s.is(kwTransaction) {
			s.verb, s.effects = VerbBegin, s.effects&^EffAdmin|EffTxBegin
		}
	case kwShutdown, kwRestart, kwClone:
		s.effects |= EffQuit
	case kwPurge:
		s.effects &^= EffImplicitCommit
	case kwBinlog:
		s.effects |= EffUnknownFunc
	case kwFlush:
		for !s.done() {
			if s.is(kwRead) && s.prev.kw == kwWith || s.is(kwExport) && s.prev.kw == kwFor {
				s.effects |= EffTableLock
			}
			s.next()
		}
	}
	s.inert = true
}

// diagnose handles GET DIAGNOSTICS, which writes user variables, and SIGNAL.
func (s *scanner) diagnose() {
	if !s.is(kwGet) {
		return
	}
	for !s.done() {
		s.next()
		if s.tok.kind == tokUserVar && s.prev.kw != kwCondition {
			s.effects |= EffUserVarWrite
		}
	}
}

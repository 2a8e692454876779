package myscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

// wordClass is the meaning of a word to the scanner, apart from being a keyword.
type wordClass uint16

const (
	classFunction   wordClass = 1 << iota // a built-in function; wordEffects has its effects
	classGrammar                          // not a function before "("
	classTight                            // a function only if "(" follows immediately
	classVolatile                         // see volatileNames
	classMySQL                            // a function of MySQL 8.0 and newer
	classMariaDB                          // a function of MariaDB; with neither, of all servers
	classLate                             // a function of MariaDB 11.8, MySQL 9.0 and newer only
	classExpression                       // see expressionWords
	classRelation                         // see sessionRelations
)

// specialFunctions are the built-in functions that have effects on a session. That of
// last_insert_id depends on its argument.
var specialFunctions = []struct {
	effects Effect
	class   wordClass
	names   string
}{
	{EffLock, 0, "get_lock"},
	{EffRelease, 0, "release_lock"},
	{EffRelease, classMySQL | classMariaDB, "release_all_locks"},
	{EffLastID, 0, "last_insert_id"},
	{EffDiag, 0, "found_rows row_count"},
	{EffSessionRead, 0, "connection_id is_used_lock"},
	{EffSessionRead, classMySQL, "ps_current_thread_id"},
	{EffSessionRead, classMariaDB, "wsrep_last_seen_gtid wsrep_last_written_gtid"},
	{EffSleep, 0, "sleep benchmark master_pos_wait"},
	{EffSleep, classMySQL, "source_pos_wait wait_for_executed_gtid_set"},
	{EffSleep, classMariaDB, "master_gtid_wait wsrep_sync_wait_upto_gtid"},
	{EffSequence | EffWrites, classMariaDB, "nextval setval"},
	{EffSequenceRead, classMariaDB, "lastval"},
}

// specialVariables are the variables that are more than settings, by what reading them depends
// on.
var specialVariables = []struct {
	effects Effect
	names   string
}{
	{EffLastID, "last_insert_id identity"},
	{EffDiag, "warning_count error_count"},
	{EffSessionRead, "pseudo_thread_id rand_seed1 rand_seed2 insert_id timestamp last_gtid in_transaction gtid_next"},
}

// sessionRelations are tables whose rows depend on the session, beside all tables of the
// databases performance_schema and sys.
const sessionRelations = `processlist session_status session_variables user_variables optimizer_trace profiling
	innodb_temp_table_info innodb_session_temp_tablespaces`

// vocabulary has all known words: the keywords in the order of their constants, then the
// others. Classes and effects are indexed by keyword number.
type vocabulary struct {
	table   *lexicon.Table
	classes []wordClass
	effects []Effect // of functions
	longest int      // bytes of the longest word
}

var words = newVocabulary()

func newVocabulary() *vocabulary {
	v := &vocabulary{classes: make([]wordClass, len(keywordNames)), effects: make([]Effect, len(keywordNames))}
	list, index := append([]string(nil), keywordNames[1:]...), make(map[string]int, 1024)
	for i, w := range list {
		index[w] = i + 1
	}
	add := func(names string, class wordClass, e Effect) {
		for w := range strings.FieldsSeq(names) {
			i, ok := index[w]
			if !ok {
				list, v.classes, v.effects = append(list, w), append(v.classes, 0), append(v.effects, 0)
				i = len(list)
				index[w] = i
			}
			v.classes[i] |= class
			v.effects[i] |= e
		}
	}
	add(harmlessEverywhere, classFunction, 0)
	add(harmlessNewer, classFunction|classMySQL|classMariaDB, 0)
	add(harmlessMySQL, classFunction|classMySQL, 0)
	add(harmlessMariaDB, classFunction|classMariaDB, 0)
	add(harmlessLate, classLate, 0)
	add(volatileNames, classVolatile, 0)
	add(tightNames, classTight, 0)
	add(grammarWords, classGrammar, 0)
	add(expressionWords, classExpression, 0)
	add(sessionRelations, classRelation, 0)
	for _, s := range specialFunctions {
		add(s.names, classFunction|s.class, s.effects)
	}
	for _, w := range list {
		v.longest = max(v.longest, len(w))
	}
	v.table = lexicon.NewTable(list)
	return v
}

// lookupKeyword returns the number of an unquoted word.
func lookupKeyword(word string, h uint32) keyword {
	if len(word) > words.longest {
		return notKeyword
	}
	return keyword(words.table.Find(word, h, true) + 1)
}

// has reports whether the word is of one of the classes.
func (k keyword) has(class wordClass) bool { return words.classes[k]&class != 0 }

// isFunction reports whether the server of mode has a built-in function of this name.
func (k keyword) isFunction(mode Mode) bool {
	class := words.classes[k]
	if class&classFunction == 0 {
		return false
	}
	only := class & (classMySQL | classMariaDB)
	switch {
	case only == 0:
		return true
	case mode.Version == 0:
		return false
	case mode.MariaDB:
		return only&classMariaDB != 0 && (class&classLate == 0 || mode.Version >= 110800)
	case class&classLate != 0:
		return only&classMySQL != 0 && mode.Version >= 90000
	}
	return only&classMySQL != 0 && mode.Version >= 80000
}

var variableTable, variableEffects = func() (*lexicon.Table, []Effect) {
	var names []string
	var effects []Effect
	for _, s := range specialVariables {
		for name := range strings.FieldsSeq(s.names) {
			names, effects = append(names, name), append(effects, s.effects)
		}
	}
	return lexicon.NewTable(names), effects
}()

// readingVariable returns what reading a system variable depends on.
func readingVariable(name string) Effect {
	if i := variableTable.Find(name, lexicon.Hash(name), true); i >= 0 {
		return EffSysVar | variableEffects[i]
	}
	return EffSysVar
}

// isSessionRelation reports whether name is one of sessionRelations.
func isSessionRelation(name string) bool {
	const shortest = len("profiling")
	return len(name) >= shortest && lookupKeyword(name, lexicon.Hash(name)).has(classRelation)
}

// isSessionDatabase reports whether the tables of a database depend on the session.
func isSessionDatabase(name string) bool {
	return len(name) == len("sys") && lexicon.EqualFold(name, "sys") ||
		len(name) == len("performance_schema") && lexicon.EqualFold(name, "performance_schema")
}

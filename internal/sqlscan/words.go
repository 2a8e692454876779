package sqlscan

import "strings"

//go:generate go run gen.go -dsn "host=/tmp user=postgres"

// keyword is a word of PostgreSQL's grammar; notKeyword for any other word.
type keyword uint16

// isFunctionName reports whether a word may be the name of a function. Reserved
// words, and those of the class "cannot be function or type name", may not.
func (k keyword) isFunctionName() bool { return k == notKeyword || k > lastNoFunction }

// foldByte maps the bytes of an identifier to lower case and all others to 0.
// Bytes above 127 are letters and are not folded, as in a UTF-8 server.
var foldByte = func() (t [256]byte) {
	for c := range t {
		switch {
		case 'A' <= c && c <= 'Z':
			t[c] = byte(c) + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '$', c >= 128:
			t[c] = byte(c)
		}
	}
	return t
}()

// FNV-1a over folded bytes; the lexer computes it as it passes a word.
const (
	wordHashBasis uint32 = 2166136261
	wordHashPrime uint32 = 16777619
)

func hashWord(word string) uint32 {
	h := wordHashBasis
	for i := range len(word) {
		h = (h ^ uint32(foldByte[word[i]])) * wordHashPrime
	}
	return h
}

// wordTable is a read-only open-addressing hash table of lower-case words. The
// slots hold 1 + index into words, 0 when free; it is at most half full.
type wordTable struct {
	words []string
	slots []uint16
	mask  uint32
}

func newWordTable(words []string) *wordTable {
	size := 16
	for size < 4*len(words) {
		size *= 2
	}
	t := &wordTable{words: words, slots: make([]uint16, size), mask: uint32(size - 1)}
	for i, w := range words {
		at := spread(hashWord(w)) & t.mask
		for t.slots[at] != 0 {
			at = (at + 1) & t.mask
		}
		t.slots[at] = uint16(i + 1)
	}
	return t
}

// spread brings the high bits of an FNV hash, which mix best, to the low end.
func spread(h uint32) uint32 { return h ^ h>>15 }

// find returns the index of word, whose hashWord is h, or -1. With fold the
// case of word is ignored.
func (t *wordTable) find(word string, h uint32, fold bool) int {
	for at := spread(h) & t.mask; ; at = (at + 1) & t.mask {
		i := int(t.slots[at]) - 1
		if i < 0 {
			return -1
		}
		if t.words[i] == word || fold && equalFolded(word, t.words[i]) {
			return i
		}
	}
}

// equalFolded reports whether word folds to lower.
func equalFolded(word, lower string) bool {
	if len(word) != len(lower) {
		return false
	}
	for i := range len(word) {
		if foldByte[word[i]] != lower[i] {
			return false
		}
	}
	return true
}

// keywordTable has the keyword k at index k-1.
var keywordTable = newWordTable(strings.Fields(keywordNames))

// lookupKeyword returns the keyword of an unquoted word.
func lookupKeyword(word string, h uint32) keyword {
	if len(word) > 17 { // current_timestamp
		return notKeyword
	}
	return keyword(keywordTable.find(word, h, true) + 1)
}

var harmlessTable = newWordTable(strings.Fields(harmlessNames))

// specialFunctions are the functions of pg_catalog that do to a session what an
// Effect names. set_config depends on its argument and is not here.
var specialFunctions = []struct {
	effects Effect
	names   string
}{
	{EffAdvisory, `pg_advisory_lock pg_advisory_lock_shared pg_try_advisory_lock pg_try_advisory_lock_shared`},
	{EffRelease, `pg_advisory_unlock pg_advisory_unlock_shared pg_advisory_unlock_all`},
	{EffSequenceRead, `currval lastval`},
	{EffSequence, `nextval setval`},
	{EffSeed, `setseed`},
	{EffSleep, `pg_sleep pg_sleep_for pg_sleep_until`},
	{EffSessionRead, `current_setting pg_backend_pid inet_client_addr
		inet_client_port inet_server_addr inet_server_port pg_my_temp_schema
		pg_is_other_temp_schema pg_listening_channels pg_prepared_statement
		pg_cursor pg_show_all_settings pg_lock_status pg_stat_get_activity
		pg_stat_get_backend_idset pg_stat_get_backend_activity
		pg_stat_get_backend_activity_start pg_stat_get_backend_client_addr
		pg_stat_get_backend_client_port pg_stat_get_backend_dbid
		pg_stat_get_backend_pid pg_stat_get_backend_start
		pg_stat_get_backend_userid pg_stat_get_backend_wait_event
		pg_stat_get_backend_wait_event_type pg_stat_get_backend_xact_start
		pg_get_backend_memory_contexts pg_stat_get_xact_numscans
		pg_stat_get_xact_tuples_inserted pg_stat_get_xact_tuples_updated
		pg_stat_get_xact_tuples_deleted pg_stat_get_xact_tuples_returned
		pg_stat_get_xact_tuples_fetched pg_stat_get_snapshot_timestamp`},
}

// sessionRelations are the system views whose rows depend on the session.
var sessionRelations = strings.Fields(`pg_stat_activity pg_locks
	pg_prepared_statements pg_cursors pg_settings pg_stat_ssl pg_stat_gssapi
	pg_backend_memory_contexts pg_stat_xact_all_tables pg_stat_xact_sys_tables
	pg_stat_xact_user_tables pg_stat_xact_user_functions`)

var sessionRelationTable = newWordTable(sessionRelations)

var specialTable, specialEffects = func() (*wordTable, []Effect) {
	var words []string
	var effects []Effect
	for _, s := range specialFunctions {
		for name := range strings.FieldsSeq(s.names) {
			words = append(words, name)
			effects = append(effects, s.effects)
		}
	}
	return newWordTable(words), effects
}()

// functionEffects returns what calling the function of pg_catalog does to a
// session; EffUnknownFunc for a name that is not known to be harmless.
func functionEffects(name string, fold bool) Effect {
	h := hashWord(name)
	if i := specialTable.find(name, h, fold); i >= 0 {
		return specialEffects[i]
	}
	if harmlessTable.find(name, h, fold) >= 0 {
		return 0
	}
	return EffUnknownFunc
}

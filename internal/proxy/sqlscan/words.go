package sqlscan

import (
	"strings"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

//go:generate go run gen.go -dsn "host=/tmp user=postgres"

// keyword is a word of PostgreSQL's grammar; notKeyword for any other word.
type keyword uint16

// isFunctionName reports whether a word may be the name of a function. Reserved
// words, and those of the class "cannot be function or type name", may not.
func (k keyword) isFunctionName() bool { return k == notKeyword || k > lastNoFunction }

// keywordTable has the keyword k at index k-1.
var keywordTable = lexicon.NewTable(strings.Fields(keywordNames))

// lookupKeyword returns the keyword of an unquoted word.
func lookupKeyword(word string, h uint32) keyword {
	if len(word) > 17 { // current_timestamp
		return notKeyword
	}
	return keyword(keywordTable.Find(word, h, true) + 1)
}

var harmlessTable = lexicon.NewTable(strings.Fields(harmlessNames))

// specialFunctions are the functions of pg_catalog with known effects on a session. set_config depends on its argument and is not here.
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

var sessionRelationTable = lexicon.NewTable(sessionRelations)

var specialTable, specialEffects = func() (*lexicon.Table, []Effect) {
	var words []string
	var effects []Effect
	for _, s := range specialFunctions {
		for name := range strings.FieldsSeq(s.names) {
			words = append(words, name)
			effects = append(effects, s.effects)
		}
	}
	return lexicon.NewTable(words), effects
}()

// functionEffects returns what calling the function of pg_catalog does to a
// session; EffUnknownFunc for a name that is not known to be harmless.
func functionEffects(name string, fold bool) Effect {
	h := lexicon.Hash(name)
	if i := specialTable.Find(name, h, fold); i >= 0 {
		return specialEffects[i]
	}
	if harmlessTable.Find(name, h, fold) >= 0 {
		return 0
	}
	return EffUnknownFunc
}

package sqlscan

import (
	"testing"

	"github.com/weirdb/weir/internal/proxy/sqlscan/lexicon"
)

func TestKeywordConstantsFitTheirNames(t *testing.T) {
	for word, want := range map[string]keyword{
		"all": kwAll, "with": kwWith, "values": kwValues, "zone": kwZone, "abort": kwAbort,
		"current_timestamp": kwCurrentTimestamp, "xmltable": kwXmltable, "json_table": kwJsonTable,
		"nosuchword": notKeyword, "": notKeyword,
	} {
		if got := lookupKeyword(word, lexicon.Hash(word)); got != want {
			t.Errorf("%s: %d, want %d", word, got, want)
		}
	}
	longest := 0
	for i := range keywordTable.Len() {
		longest = max(longest, len(keywordTable.Word(i)))
	}
	if longest > 17 {
		t.Errorf("lookupKeyword passes over words of %d bytes", longest)
	}
}

func TestHarmlessFunctionsHaveNoEffect(t *testing.T) {
	for _, name := range []string{
		"set_config", "lo_import", "lo_export", "lo_open", "pg_read_file", "pg_ls_dir", "pg_terminate_backend",
		"pg_cancel_backend", "pg_reload_conf", "pg_switch_wal", "pg_promote", "query_to_xml", "table_to_xml", "ts_stat",
		"ts_rewrite", "pg_create_logical_replication_slot", "pg_logical_emit_message", "pg_stat_reset", "dblink_exec",
		"pg_replication_origin_session_setup", "binary_upgrade_set_next_pg_type_oid", "pg_export_snapshot",
	} {
		if got := functionEffects(name, true); got != EffUnknownFunc {
			t.Errorf("%s: %v", name, got)
		}
	}
	for _, name := range []string{"now", "lower", "count", "row_number", "gen_random_uuid", "txid_current", "pg_current_xact_id", "generate_series", "jsonb_build_object"} {
		if got := functionEffects(name, true); got != 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

package sqlscan

import (
	"strings"
	"testing"
)

func TestWordTablesFindTheirWords(t *testing.T) {
	for _, table := range []*wordTable{keywordTable, harmlessTable, specialTable, sessionRelationTable} {
		for i, w := range table.words {
			if got := table.find(w, hashWord(w), false); got != i {
				t.Errorf("%s: index %d, want %d", w, got, i)
			}
			upper := strings.ToUpper(w)
			if got := table.find(upper, hashWord(upper), true); got != i {
				t.Errorf("%s: index %d, want %d", upper, got, i)
			}
			if longer := w + "_not_there"; table.find(longer, hashWord(longer), true) >= 0 {
				t.Errorf("%s found", longer)
			}
		}
	}
}

func TestKeywordConstantsFitTheirNames(t *testing.T) {
	for word, want := range map[string]keyword{
		"all": kwAll, "with": kwWith, "values": kwValues, "zone": kwZone, "abort": kwAbort,
		"current_timestamp": kwCurrentTimestamp, "xmltable": kwXmltable, "json_table": kwJsonTable,
		"nosuchword": notKeyword, "": notKeyword,
	} {
		if got := lookupKeyword(word, hashWord(word)); got != want {
			t.Errorf("%s: %d, want %d", word, got, want)
		}
	}
	if int(lastKeyword) != len(keywordTable.words) {
		t.Errorf("%d constants, %d words", lastKeyword, len(keywordTable.words))
	}
	longest := 0
	for _, w := range keywordTable.words {
		longest = max(longest, len(w))
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

package myscan

import "strings"

// varyingNames are the functions whose result changes with each call, or depends on the
// connection or on other sessions. NOW() is not among them: its value belongs to the statement.
var varyingNames = func() map[string]struct{} {
	m := make(map[string]struct{})
	for name := range strings.FieldsSeq(volatileNames + `
		benchmark connection_id found_rows get_lock is_free_lock is_used_lock last_insert_id load_file master_gtid_wait
		master_pos_wait nextval lastval setval ps_current_thread_id ps_thread_id release_all_locks release_lock row_count
		sleep source_pos_wait uuid_v4 uuid_v7 wait_for_executed_gtid_set`) {
		m[name] = struct{}{}
	}
	return m
}()

// Varies reports whether a text calls, by name, a function whose result changes with each call.
// It may report too many.
func (t *Text) Varies() (found bool) {
	t.Names(func(name string, call bool) bool {
		_, varies := varyingNames[strings.ToLower(name)]
		found = found || varies && call
		return !found
	})
	return found
}

// Body returns the text without white space and comments at its ends; the whole text if it is
// too long to be split, or has comments that are code.
func (t *Text) Body() string {
	if n := len(t.tokens); t.cut && n > 0 {
		return t.sql[t.tokens[0].start:t.tokens[n-1].end]
	}
	return t.sql
}

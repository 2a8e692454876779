package postgres_test

import (
	"strings"
	"testing"
)

// A setting that the client may not set itself is not replayed: a SET of it has failed, or
// a function of a superuser has changed it, and puts it back or does not.
func TestSettingsThatTheClientMayNotSet(t *testing.T) {
	t.Parallel()
	db := database(t,
		`CREATE FUNCTION quiet() RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS
		 'BEGIN SET LOCAL session_replication_role = replica; RETURN current_setting(''session_replication_role''); END'`,
		`CREATE FUNCTION slow_log(how text) RETURNS text LANGUAGE sql SECURITY DEFINER AS
		 $$SELECT set_config('log_min_duration_statement', how, false)$$`,
		"CREATE TABLE t (x int)",
		`CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
		 'BEGIN PERFORM set_config(''log_statement'', ''none'', true); RETURN NEW; END'`,
		"CREATE TRIGGER fires BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fired()",
		"GRANT ALL ON t TO weir_other")
	w := start(t, db, twoBackends)
	other := w.wireAs("weir_other")
	for _, c := range []struct {
		name       string
		steps      []string
		show, want string
	}{
		{"within a transaction", []string{"BEGIN", "SELECT 1 AS x; SET log_statement = 'all'", "ROLLBACK"}, "SHOW log_statement", "none"},
		{"behind another statement", []string{"SELECT 1 AS x; SET log_statement = 'all'"}, "SHOW log_statement", "none"},
		{"of the server", []string{"SELECT 1 AS x; SET block_size = 1"}, "SHOW block_size", "8192"},
		{"that no view shows", []string{"SELECT 1 AS x; SET is_superuser = 'on'"}, "SHOW is_superuser", "off"},
		{"by a function, which puts it back", []string{"SELECT quiet()"}, "SHOW session_replication_role", "origin"},
		{"by a trigger, which puts it back", []string{"INSERT INTO t VALUES (1)"}, "SHOW log_statement", "none"},
		{"by a function", []string{"SELECT slow_log('7s')"}, "SHOW log_min_duration_statement", "7s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := w.within(t)
			mine := w.wireAs("weir_other")
			for _, sql := range c.steps {
				mine.ask(sql)
			}
			churn(other)
			name := strings.TrimPrefix(c.show, "SHOW ")
			mine.want(c.show, "["+name+"] ("+c.want+") SHOW I")
			mine.close()
		})
	}
}

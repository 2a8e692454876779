package postgres_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	gosync "sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirdb/weir/internal/proxy/postgres"
	"github.com/weirdb/weir/internal/proxy/proxytest"
)

// TestSlowLog: who, what and where the time went, without literals unless they are
// asked for; nothing of quick statements.
func TestSlowLog(t *testing.T) {
	t.Parallel()
	for _, text := range []bool{false, true} {
		db := database(t, "CREATE TABLE r (id int)")
		log := new(proxytest.Lines)
		const slow = 200 * time.Millisecond
		w := start(t, db, func(c *postgres.Config) {
			c.SlowLog, c.TellText, c.PoolSize = slow, text, 1
			c.Log = slog.New(slog.NewJSONHandler(log, nil))
		})
		ctx := ctxFor(t)
		c := connect(t, w.dsn("postgres"))
		for _, sql := range []string{
			"SELECT pg_sleep(0.25), 'secret one'",
			"SET application_name = 'teller'; SELECT pg_sleep(0.25), 'secret two'",
			"SELECT 1/0, pg_sleep(0.25), 'secret three'", // fails at once
		} {
			_, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
			if err != nil && sqlState(err) != "22012" {
				t.Fatal(err)
			}
		}
		if _, err := c.Exec(ctx, "SELECT pg_sleep($1), 'secret four' FROM generate_series(1, 3)", 0.1); err != nil {
			t.Fatal(err)
		}
		// One that waits, for another's transaction.
		holder := connect(t, w.dsn("postgres"))
		tx, err := holder.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.Exec(ctx, "INSERT INTO r VALUES (92347113)", pgx.QueryExecModeSimpleProtocol)
			done <- err
		}()
		eventually(t, "it waits", func() bool { return w.pool().Waiting == 1 })
		time.Sleep(slow) // what is measured
		if err := errors.Join(tx.Rollback(ctx), <-done); err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]struct {
			rows float64
			text string
		}{
			`"statement":"select pg_sleep(?), ?"`:                            {1, "SELECT pg_sleep(0.25), 'secret one'"},
			`"statement":"set application_name = ?; select pg_sleep(?), ?"`:  {1, "SET application_name = 'teller'; SELECT pg_sleep(0.25), 'secret two'"},
			`"statement":"select pg_sleep(?), ? from generate_series(?, ?)"`: {3, "SELECT pg_sleep($1), 'secret four' FROM generate_series(1, 3)"},
			`"statement":"insert into r values (?)"`:                         {1, "INSERT INTO r VALUES (92347113)"},
		} {
			eventually(t, "a line with "+what, func() bool { return len(log.With(what)) > 0 })
			var line struct {
				Msg, Engine, User, Database, Client, Fingerprint, Path, Text string
				Took, Wait, Server                                           time.Duration
				Rows                                                         float64
			}
			found := log.With(what)
			if err := json.Unmarshal([]byte(found[0]), &line); err != nil || len(found) != 1 {
				t.Fatalf("%d lines: %v\n%s", len(found), err, found)
			}
			if line.Msg != "slow statement" || line.Engine != "postgresql" || line.User != "postgres" || line.Database != db || line.Client == "" ||
				len(line.Fingerprint) != 16 || line.Path != "alone" || line.Rows != want.rows || line.Took < slow || line.Wait+line.Server != line.Took {
				t.Errorf("%s", found[0])
			}
			if waited := strings.Contains(what, "insert"); waited && line.Wait < slow || !waited && line.Server < slow {
				t.Errorf("waited: %s", found[0])
			}
			if text != (line.Text == want.text) || !text && line.Text != "" {
				t.Errorf("text %q", line.Text)
			}
		}
		// On a busy machine others are slow, too, such as BEGIN; none that was quick is there.
		lines := log.With("slow statement")
		for _, l := range lines {
			var line struct{ Took time.Duration }
			if err := json.Unmarshal([]byte(l), &line); err != nil || line.Took < slow {
				t.Errorf("%v: %s", err, l)
			}
		}
		if leaked := append(log.With("secret"), log.With("92347113")...); !text && len(leaked) > 0 {
			t.Errorf("literals in the log:\n%s", leaked)
		}
		if s := w.snapshot(); int(s.SlowLogged) != len(lines) || s.SlowDropped != 0 {
			t.Errorf("%d lines, %d logged, %d dropped", len(lines), s.SlowLogged, s.SlowDropped)
		}
	}
}

// A span is what a test looks at of one.
type span struct {
	TraceID, ParentSpanID, SpanID, Name string
	Attributes                          map[string]string
	Failed                              bool
}

// collect is an OTLP receiver; spans arrive by their trace.
func collect(t *testing.T) (url string, spans func(trace string) []span) {
	t.Helper()
	var mu gosync.Mutex
	all := make(map[string][]span)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct {
						TraceID, ParentSpanID, SpanID, Name string
						Attributes                          []struct {
							Key   string
							Value map[string]any
						}
						Status struct{ Code int }
					}
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, s := range body.ResourceSpans[0].ScopeSpans[0].Spans {
			one := span{s.TraceID, s.ParentSpanID, s.SpanID, s.Name, make(map[string]string), s.Status.Code == 2}
			for _, a := range s.Attributes {
				for _, v := range a.Value {
					text, _ := json.Marshal(v) // of what was JSON
					one.Attributes[a.Key] = strings.Trim(string(text), `"`)
				}
			}
			all[s.TraceID] = append(all[s.TraceID], one)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, func(trace string) []span {
		mu.Lock()
		defer mu.Unlock()
		return all[trace]
	}
}

// TestSpans: a statement that carries a sampled traceparent, in a hint or as
// SQLCommenter writes it, makes one span in the application's trace, whatever its path.
func TestSpans(t *testing.T) {
	t.Parallel()
	url, spans := collect(t)
	db := database(t, "CREATE TABLE r (id int PRIMARY KEY)")
	w := start(t, db, func(c *postgres.Config) { c.OTLP.Endpoint = url })
	ctx := ctxFor(t)
	c := connect(t, w.dsn("postgres"))
	trace := func(n string) string { return strings.Repeat("a", 30) + n }
	parent := func(n, flags string) string { return "00-" + trace(n) + "-00f067aa0ba902b7-" + flags }
	const text, prepared = pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement
	next := 100
	eventually(t, "writes are grouped", func() bool { // weir knows the server and the table by then
		next++
		if _, err := c.Exec(ctx, "/* batch */ INSERT INTO r VALUES ($1)", next); err != nil {
			t.Fatal(err)
		}
		return w.pool().Grouped > 0
	})
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"SELECT 1 /*traceparent='" + parent("01", "01") + "'*/", []any{text}},
		{"SELECT 1 /*traceparent='" + parent("01", "01") + "'*/", []any{text}}, // known by now: beside others'
		{"/* traceparent:" + parent("02", "01") + " */ SELECT $1::int", []any{prepared, 7}},
		{"/* traceparent:" + parent("03", "00") + " */ SELECT 1", []any{text}},     // not sampled
		{"/* traceparent:" + parent("04", "01")[1:] + " */ SELECT 1", []any{text}}, // none
		{"INSERT INTO r VALUES (1) /*app='x',traceparent='" + parent("05", "01") + "'*/", []any{text}},
		{"INSERT INTO r VALUES (1) /*app='x',traceparent='" + parent("06", "01") + "'*/", []any{text}}, // fails
		{"/* batch traceparent:" + parent("07", "01") + " */ INSERT INTO r VALUES ($1)", []any{prepared, 2}},
	} {
		rows, err := c.Query(ctx, s.sql, s.args...)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		if err != nil && sqlState(err) != "23505" {
			t.Fatalf("%s: %v", s.sql, err)
		}
	}
	eventually(t, "all spans", func() bool { return w.snapshot().Spans.Sent >= 6 })
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for n, want := range map[string]struct {
		spans int
		name  string
		attrs map[string]string
	}{
		"01": {2, "SELECT " + db, map[string]string{"db.query.text": "select ?", "db.response.returned_rows": "1"}},
		"02": {1, "SELECT " + db, map[string]string{"db.query.text": "select ?::int"}},
		"03": {},
		"04": {},
		"05": {1, "INSERT " + db, map[string]string{"weir.path": "alone", "db.namespace": db, "db.system.name": "postgresql", "weir.user": "postgres"}},
		"06": {1, "INSERT " + db, map[string]string{"db.response.status_code": "23505", "error.type": "23505"}},
		"07": {1, "INSERT " + db, map[string]string{"weir.path": "grouped", "db.response.returned_rows": "1"}},
	} {
		got := spans(trace(n))
		if len(got) != want.spans {
			t.Errorf("%s: %d spans, want %d", n, len(got), want.spans)
			continue
		}
		for i, s := range got {
			if s.Name != want.name || s.ParentSpanID != "00f067aa0ba902b7" || ids[s.SpanID] || s.Failed != (n == "06") {
				t.Errorf("%s: %+v", n, s)
			}
			ids[s.SpanID] = true
			for key, value := range want.attrs {
				if i == len(got)-1 && s.Attributes[key] != value {
					t.Errorf("%s: %s is %q, want %q", n, key, s.Attributes[key], value)
				}
			}
		}
	}
	if c := w.StatementLog.Spans.Counts(); c.Sent != 6 || c.Dropped+c.Failed != 0 {
		t.Errorf("%+v", c)
	}
}

package mysql_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/mysql"
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
		w := start(t, db, func(c *mysql.Config) {
			c.SlowLog, c.TellText, c.PoolSize = slow, text, 1
			c.Log = slog.New(slog.NewJSONHandler(log, nil))
		})
		ctx := ctxFor(t)
		c := w.connect(nil)
		if _, err := c.ExecContext(ctx, "SELECT SLEEP(0.25), 'secret one'"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ExecContext(ctx, "UPDATE r SET id = SLEEP(?), nothing = 'secret two'", 0.25); code(err) != 1054 {
			t.Fatal(err)
		}
		if _, err := c.ExecContext(ctx, "INSERT INTO r SELECT SLEEP(?) + 92347113", 0.25); err != nil {
			t.Fatal(err)
		}
		// One that waits, for another's transaction.
		holder := w.connect(nil)
		tx, err := holder.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.ExecContext(ctx, "INSERT INTO r VALUES (92347113)")
			done <- err
		}()
		eventually(t, "it waits", func() bool { return w.pool().Waiting == 1 })
		time.Sleep(slow) // what is measured
		if err := errors.Join(tx.Rollback(), <-done); err != nil {
			t.Fatal(err)
		}
		for what, want := range map[string]string{
			`"statement":"select sleep(?), ?"`:                "SELECT SLEEP(0.25), 'secret one'",
			`"statement":"insert into r select sleep(?) + ?"`: "INSERT INTO r SELECT SLEEP(?) + 92347113",
			`"statement":"insert into r values (?)"`:          "INSERT INTO r VALUES (92347113)",
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
			if line.Msg != "slow statement" || line.Engine != "mysql" || line.User != "root" || line.Database != db || line.Client == "" ||
				len(line.Fingerprint) != 16 || line.Path != "alone" || line.Rows != 1 || line.Took < slow || line.Wait+line.Server != line.Took {
				t.Errorf("%s", found[0])
			}
			if waited := strings.Contains(what, "values"); waited && line.Wait < slow || !waited && line.Server < slow {
				t.Errorf("waited: %s", found[0])
			}
			if text != (line.Text == want) || !text && line.Text != "" {
				t.Errorf("text %q", line.Text)
			}
		}
		if leaked := append(log.With("secret"), log.With("92347113")...); !text && len(leaked) > 0 {
			t.Errorf("literals in the log:\n%s", leaked)
		}
		if s := w.snapshot(); s.SlowLogged != uint64(len(log.With("slow statement"))) || s.SlowDropped != 0 {
			t.Errorf("%d logged, %d dropped", s.SlowLogged, s.SlowDropped)
		}
	}
}

// TestSpans: a statement that carries a sampled traceparent makes one span in the
// application's trace, whatever its path.
func TestSpans(t *testing.T) {
	t.Parallel()
	type request struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					TraceID, ParentSpanID, Name string
					Attributes                  []struct {
						Key   string
						Value map[string]any
					}
					Status struct{ Code int }
				}
			}
		}
	}
	var mu sync.Mutex
	var received []request
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var body request
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		received = append(received, body)
	}))
	t.Cleanup(receiver.Close)
	db := database(t, "CREATE TABLE r (id int PRIMARY KEY)")
	w := start(t, db, func(c *mysql.Config) { c.OTLP.Endpoint = receiver.URL })
	ctx := ctxFor(t)
	c := w.connect(nil)
	next := 100
	eventually(t, "writes are grouped", func() bool { // weir knows the server and the table by then
		next++
		if _, err := c.ExecContext(ctx, "/* batch */ INSERT INTO r VALUES (?)", next); err != nil {
			t.Fatal(err)
		}
		return w.pool().Grouped > 0
	})
	trace := func(n string) string { return strings.Repeat("a", 30) + n }
	parent := func(n, flags string) string { return "00-" + trace(n) + "-00f067aa0ba902b7-" + flags }
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{"SELECT 1 /*traceparent='" + parent("01", "01") + "'*/", nil},
		{"/* traceparent:" + parent("02", "01") + " */ SELECT ?", []any{7}},
		{"/* traceparent:" + parent("03", "00") + " */ SELECT 1", nil}, // not sampled
		{"INSERT INTO r VALUES (1) /*app='x',traceparent='" + parent("05", "01") + "'*/", nil},
		{"INSERT INTO r VALUES (1) /*app='x',traceparent='" + parent("06", "01") + "'*/", nil}, // fails
		{"/* batch traceparent:" + parent("07", "01") + " */ INSERT INTO r VALUES (?)", []any{2}},
		{"/* batch traceparent:" + parent("08", "01") + " */ INSERT INTO r VALUES (3)", nil},
	} {
		if _, err := c.ExecContext(ctx, s.sql, s.args...); err != nil && code(err) != 1062 {
			t.Fatalf("%s: %v", s.sql, err)
		}
	}
	eventually(t, "all spans", func() bool { return w.snapshot().Spans.Sent >= 6 })
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]string)
	for _, r := range received {
		for _, s := range r.ResourceSpans[0].ScopeSpans[0].Spans {
			attrs := make(map[string]any)
			for _, a := range s.Attributes {
				for _, v := range a.Value {
					attrs[a.Key] = v
				}
			}
			failed := ""
			if s.Status.Code == 2 {
				failed, _ = attrs["error.type"].(string)
			}
			path, _ := attrs["weir.path"].(string)
			if path == "shared" {
				path = "alone" // as it was fast enough or not
			}
			rows, _ := attrs["db.response.returned_rows"].(string)
			got[s.TraceID] = append(got[s.TraceID], strings.Join([]string{s.ParentSpanID, s.Name, path, rows, failed}, " "))
		}
	}
	for n, want := range map[string]string{
		"01": "00f067aa0ba902b7 SELECT " + db + " alone 1 ",
		"02": "00f067aa0ba902b7 SELECT " + db + " alone 1 ",
		"05": "00f067aa0ba902b7 INSERT " + db + " alone 1 ",
		"06": "00f067aa0ba902b7 INSERT " + db + " alone 0 1062",
		"07": "00f067aa0ba902b7 INSERT " + db + " grouped 1 ",
		"08": "00f067aa0ba902b7 INSERT " + db + " grouped 1 ",
	} {
		if spans := got[trace(n)]; len(spans) != 1 || spans[0] != want {
			t.Errorf("%s: %q, want %q", n, spans, want)
		}
		delete(got, trace(n))
	}
	if len(got) > 0 {
		t.Errorf("besides: %v", got)
	}
}

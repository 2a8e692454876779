package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// script is an Execer that keeps what it was given.
type script struct {
	mu      sync.Mutex
	queries []string
	args    [][]any
	err     error
	gate    chan struct{} // when set, every call waits for one token
}

func (s *script) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, query)
	s.args = append(s.args, args)
	return nil, s.err
}

// pgxScript has the shape of a pgx transaction.
type pgxScript struct{ script }

func (s *pgxScript) Exec(ctx context.Context, query string, args ...any) (string, error) {
	_, err := s.ExecContext(ctx, query, args...)
	return "INSERT 0 1", err
}

func TestEnqueueText(t *testing.T) {
	ctx := t.Context()
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.FixedZone("", 3600))
	for _, c := range []struct {
		name string
		tx   func(*script) Tx
		msgs []Message
		want []string
		last string // the last argument of the last statement
	}{
		{
			"postgres", func(s *script) Tx { return Postgres(s) },
			[]Message{{Topic: "a"}, {Topic: "b"}},
			[]string{`INSERT INTO "weir_outbox" (bucket, id, topic, msg_key, payload, headers, dedup_key) VALUES ($1, $2, $3, $4, $5, $6, $7), ($8, $9, $10, $11, $12, $13, $14)`},
			"<nil>",
		},
		{
			"mysql", func(s *script) Tx { return MySQL(s).Table("app.my`box") },
			[]Message{{Topic: "a", DedupKey: "d"}},
			[]string{"INSERT INTO `app`.`my``box` (bucket, id, topic, msg_key, payload, headers, dedup_key) VALUES (?, ?, ?, ?, ?, ?, ?)"},
			"d",
		},
		{
			"scheduled apart", func(s *script) Tx { return SQLite(s) },
			[]Message{{Topic: "a", AvailableAt: at}, {Topic: "b"}},
			[]string{
				`INSERT INTO "weir_outbox" (bucket, id, topic, msg_key, payload, headers, dedup_key) VALUES (?, ?, ?, ?, ?, ?, ?)`,
				`INSERT INTO "weir_outbox_scheduled" (bucket, id, topic, msg_key, payload, headers, dedup_key, available_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			},
			fmt.Sprint(at.UnixMicro()),
		},
		{
			"offset kept", func(s *script) Tx { return Postgres(s) },
			[]Message{{Topic: "a", AvailableAt: at}},
			[]string{`INSERT INTO "weir_outbox_scheduled" (bucket, id, topic, msg_key, payload, headers, dedup_key, available_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`},
			"2026-03-04 04:06:07.000008+00:00",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s script
			if err := Enqueue(ctx, c.tx(&s), c.msgs...); err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Join(s.queries, "\n"), strings.Join(c.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			args := s.args[len(s.args)-1]
			if got := fmt.Sprint(args[len(args)-1]); got != c.last {
				t.Errorf("last argument %s, want %s", got, c.last)
			}
			for _, m := range c.msgs {
				if m.ID.IsZero() {
					t.Error("a message has no id afterwards")
				}
			}
		})
	}
}

func TestEnqueueThroughPgx(t *testing.T) {
	var tx pgxScript
	if err := Enqueue(t.Context(), Pgx(&tx), Message{Topic: "a"}); err != nil || len(tx.queries) != 1 {
		t.Fatalf("%v, %d statements", err, len(tx.queries))
	}
}

func TestEnqueueSplitsLongLists(t *testing.T) {
	var s script
	msgs := make([]Message, 600)
	for i := range msgs {
		msgs[i].Topic = fmt.Sprint(i)
	}
	if err := Enqueue(t.Context(), MySQL(&s), msgs...); err != nil {
		t.Fatal(err)
	}
	var topics []string
	for _, args := range s.args {
		for i := 2; i < len(args); i += 7 {
			topics = append(topics, args[i].(string))
		}
	}
	if len(s.queries) != 3 || len(topics) != 600 {
		t.Fatalf("%d statements, %d rows: want 3 and 600", len(s.queries), len(topics))
	}
	for i, topic := range topics {
		if topic != fmt.Sprint(i) {
			t.Fatalf("row %d is %s", i, topic)
		}
	}
}

func TestEnqueueRefusesBeforeAnythingIsWritten(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, m := range map[string]Message{
		"no topic":       {},
		"long topic":     {Topic: long},
		"long key":       {Topic: "t", Key: long},
		"long dedup key": {Topic: "t", DedupKey: long},
		"NUL":            {Topic: "t", Key: "a\x00b"},
		"not UTF-8":      {Topic: "t\xff"},
		"header name":    {Topic: "t", Headers: map[string]string{"": "v"}},
		"header value":   {Topic: "t", Headers: map[string]string{"h": "\xff"}},
		"headers":        {Topic: "t", Headers: map[string]string{"h": strings.Repeat("x", MaxHeaders)}},
		"payload":        {Topic: "t", Payload: make([]byte, MaxPayload+1)},
	} {
		t.Run(name, func(t *testing.T) {
			var s script
			err := Enqueue(t.Context(), Postgres(&s), Message{Topic: "fine"}, m)
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "message 2 of 2") {
				t.Errorf("error %v", err)
			}
			if len(s.queries) > 0 {
				t.Errorf("%d statements were sent", len(s.queries))
			}
		})
	}
}

// A message that is too large must be refused before messages of others join it in a group.
func TestLargeHeadersAreRefusedBeforeAGroupForms(t *testing.T) {
	with := func(value string) []Message {
		return []Message{{Topic: "t", Headers: map[string]string{"h": value}}}
	}
	for name, c := range map[string]struct {
		msgs []Message
		ok   bool
	}{
		"small":       {with("x"), true},
		"just fits":   {with(strings.Repeat("x", MaxHeaders-len(`{"h":""}`))), true},
		"one more":    {with(strings.Repeat("x", MaxHeaders-len(`{"h":""}`)+1)), false},
		"by escaping": {with(strings.Repeat("<", MaxHeaders/6)), false},
	} {
		if err := prepare(c.msgs); c.ok != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestGroupSharesInserts(t *testing.T) {
	s := &script{gate: make(chan struct{})}
	g := NewGroup(Postgres(s))
	var group sync.WaitGroup
	errs := make(chan error, 40)
	for i := range 40 {
		group.Go(func() { errs <- g.Enqueue(t.Context(), Message{Topic: fmt.Sprint(i)}) })
	}
	// The first statement waits until all are there: the rest cannot but share.
	for g.b.Stats().Pushed < 40 {
		time.Sleep(time.Millisecond)
	}
	close(s.gate)
	group.Wait()
	for range 40 {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	rows := 0
	for _, args := range s.args {
		rows += len(args) / 7
	}
	if rows != 40 || len(s.queries) >= 40 {
		t.Errorf("%d rows in %d statements: want 40 in fewer", rows, len(s.queries))
	}
	if err := g.Enqueue(t.Context(), Message{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an invalid message: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// A caller whose context has ended may use its memory again while the insert of the
// group goes on.
func TestGroupKeepsNoMemoryOfItsCallers(t *testing.T) {
	s := &script{gate: make(chan struct{})}
	g := NewGroup(Postgres(s))
	first := make(chan error, 1)
	go func() { first <- g.Enqueue(t.Context(), Message{Topic: "a"}) }()
	for g.b.Stats().Groups < 1 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	payload, headers := []byte("before"), map[string]string{"h": "before"}
	go func() { second <- g.Enqueue(ctx, Message{Topic: "b", Payload: payload, Headers: headers}) }()
	for g.b.Stats().Pushed < 2 {
		time.Sleep(time.Millisecond)
	}
	s.gate <- struct{}{}
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	for g.b.Stats().Groups < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	copy(payload, "after!")
	headers["h"] = "after"
	close(s.gate)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	if args := fmt.Sprintf("%s", s.args[1]); !strings.Contains(args, "before") || strings.Contains(args, "after") {
		t.Errorf("inserted %s", args)
	}
}

// An insert that hangs ends, and those behind it go.
func TestGroupGivesUpAnInsertThatHangs(t *testing.T) {
	s := &script{gate: make(chan struct{})}
	g := NewGroupWith(Postgres(s), GroupOptions{Timeout: time.Millisecond})
	defer g.Close()
	if err := g.Enqueue(t.Context(), Message{Topic: "a"}); !errors.Is(err, context.DeadlineExceeded) || t.Context().Err() != nil {
		t.Errorf("enqueue behind a connection that hangs: %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestIDs(t *testing.T) {
	var last ID
	for range 20_000 {
		id := NewID()
		if string(id[:]) <= string(last[:]) {
			t.Fatalf("%v after %v", id, last)
		}
		if id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%v is no UUIDv7", id)
		}
		last = id
	}
	if d := time.Since(last.Time()); d > time.Minute || d < -time.Minute {
		t.Errorf("%v says it is %v old", last, d)
	}
	var c clock
	c.next(1000)
	if milli, count := c.next(900); milli != 1000 || count != 1 {
		t.Errorf("after the clock stepped back: %d, %d", milli, count)
	}
	back, err := ParseID(last.String())
	if err != nil || back != last {
		t.Errorf("ParseID(%s) = %v, %v", last, back, err)
	}
	for _, bad := range []string{"", "x", strings.Repeat("g", 32), last.String() + "0", strings.Replace(last.String(), "-", "_", 1)} {
		if _, err := ParseID(bad); err == nil {
			t.Errorf("ParseID(%q) has no error", bad)
		}
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	for _, h := range []map[string]string{nil, {"a": "b"}, {"ü": "\"\n", "x": ""}} {
		text, err := EncodeHeaders(h)
		if err != nil {
			t.Fatal(err)
		}
		back, err := DecodeHeaders([]byte(text))
		if err != nil || fmt.Sprint(back) != fmt.Sprint(h) {
			t.Errorf("%v came back as %v, %v", h, back, err)
		}
	}
	got, err := DecodeHeaders([]byte(`{"n": 1, "o": {"a": [2]}, "s": "x"}`))
	if err != nil || got["n"] != "1" || got["o"] != `{"a": [2]}` || got["s"] != "x" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := DecodeHeaders([]byte("[1]")); err == nil {
		t.Error("an array is no headers")
	}
}

func FuzzDecodeHeaders(f *testing.F) {
	f.Add([]byte(`{"a":"b"}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := DecodeHeaders(text)
		if err != nil {
			return
		}
		if _, err := EncodeHeaders(h); err != nil && len(text) < 1000 {
			t.Fatalf("what was decoded from %q cannot be encoded: %v", text, err)
		}
	})
}

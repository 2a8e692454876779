package core

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirdb/weir/internal/proxy/session"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// This file reports single statements: slow ones in the log, traced ones as spans. A
// goroutine waits for the log and the collector; an event loop never does.

// A StatementLog writes the slow log and sends spans. Its methods are safe for concurrent use.
type StatementLog struct {
	// Spans are those of traced statements; nil if there is no collector.
	Spans *sight.Spans

	log             *slog.Logger
	queue           chan sight.Statement
	logged, dropped atomic.Uint64
}

// slowQueue bounds the number of lines that wait to be written.
const slowQueue = 1024

func (t *StatementLog) init(o *session.Options) {
	t.Spans, t.log, t.queue = sight.NewSpans(o.OTLP, o.Log), o.Log, make(chan sight.Statement, slowQueue)
}

// Tell reports a statement: as a span if it is traced, and in the log if it was slow.
// It never waits: what cannot be queued now is counted as dropped.
func (t *StatementLog) Tell(st *sight.Statement, slow bool) {
	if st.Trace != nil {
		t.Spans.Add(st)
	}
	if !slow {
		return
	}
	select {
	case t.queue <- *st:
	default:
		t.dropped.Add(1)
	}
}

// Report reports a statement that has just ended; shape is nil if it has none. It was slow if
// it took at least slow, unless slow is 0.
func (t *StatementLog) Report(st *sight.Statement, shape *sight.Shape, slow time.Duration) {
	st.End = time.Now()
	if shape != nil {
		st.Verb, st.Shape, st.Fingerprint, st.Site = shape.Verb, shape.Shown(), shape.Fingerprint, shape.Site()
	}
	t.Tell(st, slow > 0 && st.Run.Took >= slow)
}

// run writes the slow log and sends spans until ctx ends, and then what is still queued.
func (t *StatementLog) run(ctx context.Context) {
	var spans sync.WaitGroup
	spans.Go(func() { t.Spans.Run(ctx) })
	defer spans.Wait()
	for {
		select {
		case st := <-t.queue:
			t.write(&st)
		case <-ctx.Done():
			for {
				select {
				case st := <-t.queue:
					t.write(&st)
				default:
					return
				}
			}
		}
	}
}

// SlowStatement is the message of the log for a slow statement.
const SlowStatement = "slow statement"

// SlowColumns are its attributes that the live page shows; the text with literals is not
// among them.
var SlowColumns = []string{"took", "wait", "server", "rows", "path", "user", "database", "client", "statement"}

func (t *StatementLog) write(st *sight.Statement) {
	t.logged.Add(1)
	r := &st.Run
	attrs := []slog.Attr{
		slog.String("engine", st.Engine), slog.String("user", st.User), slog.String("database", st.Database), slog.String("client", st.Client),
		slog.String("statement", st.Shape), slog.String("fingerprint", sight.FingerprintText(st.Fingerprint)),
		slog.Duration("took", r.Took), slog.Duration("wait", r.Wait()), slog.Duration("server", r.Server),
		slog.Uint64("rows", r.Rows), slog.String("path", r.Path.String()), slog.Bool("pinned", r.Pinned),
	}
	for _, more := range []struct{ key, value string }{{"application", st.App}, {"error_code", st.Code}, {"site", st.Site}, {"text", st.Text}} {
		if more.value != "" {
			attrs = append(attrs, slog.String(more.key, more.value))
		}
	}
	t.log.LogAttrs(context.Background(), slog.LevelWarn, SlowStatement, attrs...)
}

// counts adds the outcomes of slow statements and spans.
func (t *StatementLog) counts(out *sight.Snapshot) {
	out.Spans, out.SlowLogged, out.SlowDropped = t.Spans.Counts(), t.logged.Load(), t.dropped.Load()
}

// maxToldText bounds the text of a statement in the log or a span.
const maxToldText = 4 << 10

// ToldText is a copy of a statement's text, shortened, if the options permit texts; else "".
func ToldText(wanted bool, text string) string {
	if !wanted {
		return ""
	}
	return string([]byte(text[:min(len(text), maxToldText)]))
}

package bouncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/pgwire"
)

// A logSink writes lines to standard error, the logfile, or both.
type logSink struct {
	mu   sync.Mutex
	out  io.Writer // guarded by mu; nil for none
	file *os.File  // guarded by mu
}

// open makes the sink write to a file as well; "" for none. It reopens the file if it is
// the same one, because it may have been moved.
func (s *logSink) open(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var f *os.File
	if name != "" {
		var err error
		if f, err = os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return fmt.Errorf("logfile: %w", err)
		}
	}
	if s.file != nil {
		_ = s.file.Close()
	}
	s.file = f
	return nil
}

func (s *logSink) write(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil {
		_, _ = io.WriteString(s.out, line) // an error in writing the log cannot be reported anywhere
	}
	if s.file != nil {
		_, _ = s.file.WriteString(line)
	}
}

// A handler writes the log in PgBouncer's form, whose lines other programs read:
//
//	2026-11-23 12:00:00.000 UTC [pid] LOG C-0x1: db/user@host:port closing because: reason (age=0s)
type handler struct {
	sink  *logSink
	level *slog.LevelVar
	st    func() *state // whose switches say which lines are wanted
	attrs []slog.Attr
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelDebug }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *h
	n.attrs = append(append([]slog.Attr(nil), h.attrs...), attrs...)
	return &n
}

// WithGroup implements slog.Handler. Nothing in the proxy groups attributes.
func (h *handler) WithGroup(string) slog.Handler { return h }

// A logLine is one line on its way into the log.
type logLine struct {
	side, database, user, addr string
	because, err               string
	pg                         *pgwire.Error
	age                        time.Duration
	rest                       []string
}

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	var l logLine
	take := func(a slog.Attr) bool {
		switch v := a.Value.Resolve(); a.Key {
		case "client":
			l.side, l.addr = "C", v.String()
		case "address":
			l.side, l.addr = "S", v.String()
		case "database":
			l.database = v.String()
		case "user":
			l.user = v.String()
		case "because":
			l.because = v.String()
		case "age":
			l.age = v.Duration()
		case "error":
			l.err = v.String()
			if err, ok := v.Any().(error); ok {
				_ = errors.As(err, &l.pg)
			}
		default:
			l.rest = append(l.rest, a.Key+"="+v.String())
		}
		return true
	}
	for _, a := range h.attrs {
		take(a)
	}
	r.Attrs(take)
	for _, text := range h.texts(&r, &l) {
		level := "LOG"
		switch {
		case r.Level >= slog.LevelError:
			level = "ERROR"
		case r.Level >= slog.LevelWarn:
			level = "WARNING"
		}
		if cut, ok := strings.CutPrefix(text, "WARNING "); ok {
			level, text = "WARNING", cut
		}
		h.sink.write(fmt.Sprintf("%s [%d] %s %s%s\n", r.Time.UTC().Format("2006-01-02 15:04:05.000 UTC"), os.Getpid(), level, l.prefix(), text))
	}
	return nil
}

// prefix names the connection that a line is about.
func (l *logLine) prefix() string {
	if l.side == "" {
		return ""
	}
	return fmt.Sprintf("%s-0x0: %s/%s@%s ", l.side, cmp.Or(l.database, "(nodb)"), cmp.Or(l.user, "(nouser)"), address(l.addr))
}

// address returns a client's address as PgBouncer shows it.
func address(a string) string {
	if _, _, err := net.SplitHostPort(a); err != nil {
		return "unix:0"
	}
	return a
}

// texts are messages in PgBouncer's words, by event.
func (h *handler) texts(r *slog.Record, l *logLine) []string {
	st := h.st()
	on := func(name string) bool { return st == nil || st.On(name) }
	closing := func(why string) string {
		return fmt.Sprintf("closing because: %s (age=%ds)", why, int(l.age.Seconds()))
	}
	message := l.err
	if l.pg != nil {
		message = l.pg.Message
	}
	switch r.Message {
	case "client closed", "client refused":
		var list []string
		if on("log_disconnections") {
			list = append(list, closing(l.because))
		}
		if on("log_pooler_errors") {
			list = append(list, "WARNING pooler error: "+l.because)
		}
		return list
	case "login failed":
		if l.database != "" {
			return nil // the authenticator has said so
		}
		return []string{closing(message), "WARNING pooler error: " + message}
	case "server connection opened":
		if on("log_connections") {
			return []string{"new connection to server (from " + l.addr + ")"}
		}
		return nil
	case "server connection closed":
		if on("log_disconnections") {
			return []string{closing(l.because)}
		}
		return nil
	case "server connection evicted":
		return []string{closing("evicted")}
	case "server connection failed":
		return []string{closing(failure(l.because))}
	case "server login failed":
		if l.pg == nil {
			return []string{closing(failure(l.err))}
		}
		if l.addr == "" { // of a replication connection, whose client hears no more
			return []string{"WARNING server login failed: FATAL " + message, closing("login failed")}
		}
		return []string{"WARNING server login failed: FATAL " + message, closing(message)}
	}
	if r.Level < h.level.Level() {
		return nil
	}
	text := r.Message
	if l.err != "" {
		text += ": " + l.err
	}
	if len(l.rest) > 0 {
		text += " (" + strings.Join(l.rest, " ") + ")"
	}
	return []string{text}
}

// failure returns, in PgBouncer's words, why there is no connection to the server.
func failure(why string) string {
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(why, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no such host", "server misbehaving", "lookup "):
		return "server DNS lookup failed: " + why
	case has("certificate"):
		return "TLS handshake failed: certificate verify failed: " + why
	case has("no answer within", "deadline exceeded", "i/o timeout"):
		return "connect timeout: " + why
	}
	return "connect failed: " + why
}

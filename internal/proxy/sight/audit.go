package sight

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// An Audit is a log of logins, failed logins and commands of the console, one line of JSON
// each. Its methods are safe for concurrent use and on a nil Audit. They return when the
// line is written, so what is audited waits for that.
type Audit struct {
	lines slog.Handler
	file  *auditFile   // nil if it is not a file
	log   *slog.Logger // for lines that cannot be written
}

// NewAudit returns an audit log that writes to out, and logs lines that could not be
// written to log.
func NewAudit(out io.Writer, log *slog.Logger) *Audit {
	return &Audit{lines: slog.NewJSONHandler(out, nil), log: log}
}

// OpenAudit is NewAudit for a file, which it creates or appends to.
func OpenAudit(path string, log *slog.Logger) (*Audit, error) {
	f := &auditFile{path: path}
	if err := f.reopen(); err != nil {
		return nil, err
	}
	a := NewAudit(f, log)
	a.file = f
	return a, nil
}

// Reopen continues in a new file after the old one was moved away.
func (a *Audit) Reopen() error {
	if a == nil || a.file == nil {
		return nil
	}
	return a.file.reopen()
}

// Close closes the file.
func (a *Audit) Close() error {
	if a == nil || a.file == nil {
		return nil
	}
	return a.file.close()
}

// The outcomes of what is audited.
const (
	Accepted = "accepted"
	Failed   = "failed"
)

// A Login is one attempt to log in.
type Login struct {
	Engine, User, Database, Client string
	// Err is why it failed; nil if it did not.
	Err error
	// Again: a session changed its user (COM_CHANGE_USER).
	Again bool
}

// Login records the outcome of a login.
func (a *Audit) Login(l Login) {
	if a == nil {
		return
	}
	event := "login"
	if l.Again {
		event = "change_user"
	}
	a.write(event, l.Err, slog.String("engine", l.Engine), slog.String("user", l.User), slog.String("database", l.Database), slog.String("client", l.Client))
}

// Command records a command at the console.
func (a *Audit) Command(engine, user, client, command string, err error) {
	if a == nil {
		return
	}
	a.write("command", err, slog.String("engine", engine), slog.String("user", user), slog.String("client", client), slog.String("command", command))
}

func (a *Audit) write(event string, failure error, attrs ...slog.Attr) {
	r := slog.NewRecord(time.Now(), slog.LevelInfo, event, 0)
	outcome := Accepted
	if failure != nil {
		outcome = Failed
	}
	r.AddAttrs(slog.String("outcome", outcome))
	r.AddAttrs(attrs...)
	if failure != nil {
		r.AddAttrs(slog.String("error", failure.Error()))
	}
	if err := a.lines.Handle(context.Background(), r); err != nil {
		a.log.Error("audit log not written", "event", event, "error", err)
	}
}

// auditFile is a file that lines are appended to. Safe for concurrent use.
type auditFile struct {
	path string

	mu sync.Mutex
	f  *os.File // guarded by mu
}

// reopen opens the file of that name; if it cannot, the old one stays in use.
func (a *auditFile) reopen() error {
	f, err := os.OpenFile(a.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	old := a.f
	if a.f = f; old != nil {
		return old.Close()
	}
	return nil
}

func (a *auditFile) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.f.Write(p)
}

func (a *auditFile) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.f.Close()
}

package clitest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

// Log reads the JSON log of a server verb.
type Log struct {
	T     *testing.T
	Lines *bufio.Reader
	Seen  strings.Builder // what was read
}

// NewLog returns a log that is read from r.
func NewLog(t *testing.T, r io.Reader) *Log { return &Log{T: t, Lines: bufio.NewReader(r)} }

// Await returns the next entry whose message begins with message.
func (l *Log) Await(message string) map[string]any {
	l.T.Helper()
	for {
		line, err := l.Lines.ReadString('\n')
		l.Seen.WriteString(line)
		if err != nil {
			l.T.Fatalf("no %q in the log, which is\n%s", message, l.Seen.String())
		}
		var entry map[string]any
		if json.Unmarshal([]byte(line), &entry) == nil && strings.HasPrefix(fmt.Sprint(entry["msg"]), message) {
			return entry
		}
	}
}

// Serve runs a server verb within the test, and returns its log; stop ends it like the first
// signal and returns its exit code.
func (p *Program) Serve(t *testing.T, args ...string) (log *Log, stop func() int) {
	t.Helper()
	lines := newBacklog()
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- p.Execute(ctx, args, io.Discard, lines)
		lines.end()
	}()
	log = NewLog(t, lines)
	return log, func() int {
		cancel()
		_, _ = io.Copy(&log.Seen, log.Lines)
		return <-code
	}
}

// A backlog is a pipe with an unbounded buffer. With an [io.Pipe] the test would have to read
// all the time: the proxy's event loop writes to its log, and is blocked until that is done.
type backlog struct {
	mu    sync.Mutex
	more  sync.Cond    // on mu
	text  bytes.Buffer // guarded by mu
	ended bool         // guarded by mu
}

func newBacklog() *backlog {
	b := &backlog{}
	b.more.L = &b.mu
	return b
}

func (b *backlog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.more.Signal()
	return b.text.Write(p)
}

// Read waits for data or the end.
func (b *backlog) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.text.Len() == 0 && !b.ended {
		b.more.Wait()
	}
	return b.text.Read(p)
}

func (b *backlog) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.more.Signal()
}

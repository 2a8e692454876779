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
	"time"

	"github.com/weirdb/weir/internal/testkit"
)

// Log reads the JSON log of a server verb.
type Log struct {
	T     testing.TB
	Lines *bufio.Reader
	Seen  strings.Builder // what was read

	from io.Closer
}

// NewLog returns a log that is read from r. To close r must end a read that waits.
func NewLog(t testing.TB, r io.ReadCloser) *Log {
	return &Log{T: t, Lines: bufio.NewReader(r), from: r}
}

// Await returns the next entry whose message begins with message. It fails the test if there is
// none within [testkit.Patience].
func (l *Log) Await(message string) map[string]any {
	l.T.Helper()
	late := time.AfterFunc(testkit.Patience, func() { _ = l.from.Close() })
	defer late.Stop()
	for {
		line, err := l.Lines.ReadString('\n')
		l.Seen.WriteString(line)
		if err != nil {
			within := ""
			if !late.Stop() {
				within = fmt.Sprintf(" within %s", testkit.Patience)
			}
			l.T.Fatalf("no %q%s in the log, which is\n%s", message, within, l.Seen.String())
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
		_ = lines.Close()
	}()
	log = NewLog(t, lines)
	return log, func() int {
		t.Helper()
		cancel()
		c := testkit.Receive(t, "weir "+strings.Join(args, " ")+" ends", code)
		_, _ = io.Copy(&log.Seen, log.Lines)
		return c
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

// Close ends it for the reader.
func (b *backlog) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.more.Broadcast()
	return nil
}

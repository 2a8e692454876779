package reference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
)

// Status is the progress of a part.
type Status string

// The states of a part. Broken means that it has figures, and that a promise was broken in some
// round.
const (
	Pending     Status = ""
	Running     Status = "interrupted" // until it ends: a killed run cannot record its end
	Complete    Status = "complete"
	Broken      Status = "complete, with invalid rounds"
	Interrupted Status = "interrupted"
	Failed      Status = "failed"
	LeftOut     Status = "left out"
)

// State is the recorded state of a part.
type State struct {
	Status  Status   `json:"status"`
	Args    []string `json:"args"`
	Seconds float64  `json:"seconds,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// why says why a part has no figures, "" if it has all of them.
func (s State) why() string {
	switch s.Status {
	case Complete, Broken:
		return ""
	case Pending:
		return "not run yet"
	case Interrupted:
		return "interrupted"
	}
	return string(s.Status) + ": " + s.Error
}

// stateFile is the file with the states of all parts.
type stateFile struct {
	Schema  string           `json:"schema"`
	Verb    string           `json:"verb,omitempty"` // of weir bench: all or peers
	Plan    string           `json:"plan"`
	Started time.Time        `json:"started"`
	Parts   map[string]State `json:"parts"`
}

const (
	bookSchema = "weir.bench.all/1"
	bookFile   = "all.json"
)

// Options is how the parts are run.
type Options struct {
	Verb   string // of weir bench: all or peers
	Plan   string
	Out    string
	Resume bool
	// Parts are the parts to run, All those that the pages show. Default of All: Parts.
	Parts, All []Part
	Benches    []suite.Bench
	// Pages makes the pages, including "index". Default: those of the five reports.
	Pages func(m *Measured, env *measure.Environment) map[string]*report.Doc
	// Binary is the weir program that the parts run.
	Binary string
	Say    func(format string, args ...any)
	// Output is where the parts report their progress.
	Output io.Writer
	// JSON is how the summary is printed.
	JSON cli.JSON[*report.Doc]

	// sleeps measures how long sleeps take. Default: sleepsHere.
	sleeps func([]time.Duration) []bench.Slept
	// free is the free space of a directory's disk, in bytes. Default: as the system reports
	// it.
	free func(dir string) (uint64, error)
}

// Run is a run of several parts.
type Run struct {
	o      Options
	book   stateFile
	taken  map[string]*PartResults
	env    measure.Environment
	caught map[string][]bench.Finding
}

// Start opens the directory, and reads its state to resume a run.
func Start(o Options) (*Run, error) {
	if o.sleeps == nil {
		o.sleeps = sleepsHere
	}
	if o.free == nil {
		o.free = freeBytes
	}
	if len(o.All) == 0 {
		o.All = o.Parts
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	r := &Run{o: o, taken: make(map[string]*PartResults), caught: make(map[string][]bench.Finding), env: measure.ReadEnvironment()}
	r.book = stateFile{Schema: bookSchema, Verb: o.Verb, Plan: o.Plan, Started: time.Now().UTC(), Parts: make(map[string]State)}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make directory of results: %w", err)
	}
	path := filepath.Join(o.Out, bookFile)
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read what was run: %w", err)
	case !o.Resume:
		return nil, fmt.Errorf("%s already holds a run: resume it or name another directory", o.Out)
	default:
		var old stateFile
		if err := json.Unmarshal(b, &old); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if old.Schema != bookSchema {
			return nil, fmt.Errorf("%s: schema %q, this program reads %q", path, old.Schema, bookSchema)
		}
		if old.Verb != "" && old.Verb != o.Verb {
			return nil, fmt.Errorf("%s holds a run of weir bench %s: weir bench %s cannot resume it", o.Out, old.Verb, o.Verb)
		}
		if old.Plan != o.Plan {
			return nil, fmt.Errorf("%s holds a run of plan %s: --plan %s cannot resume it", o.Out, old.Plan, o.Plan)
		}
		r.book = old
		r.book.Verb = o.Verb     // earlier versions did not write it
		r.env.Time = old.Started // the figures were measured then
	}
	free, err := o.free(o.Out)
	if err != nil {
		return nil, err
	}
	if want := needs(o.Plan); free < want {
		return nil, fmt.Errorf("%s has %.1f GB free, plan %s may need %.0f GB: make room, or name another place with --out (and TMPDIR for the servers)", o.Out, float64(free)/1e9, o.Plan, float64(want)/1e9)
	}
	if o.Pages == nil {
		for _, d := range Documents() {
			r.caught[d.ID] = catches(d, o.sleeps)
		}
	}
	for _, p := range o.All {
		if err := r.read(p); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// freeBytes is the space of a directory's disk that is available to this user.
func freeBytes(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("look at the free space of %s: %w", dir, err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// Parts runs all parts that are not complete, one after another, and updates the pages after
// each. A part that fails does not stop the others; its error is returned at the end.
func (r *Run) Parts(ctx context.Context) error {
	if err := errors.Join(r.keep(), r.Write()); err != nil {
		return err
	}
	var failed []error
	for i, p := range r.o.Parts {
		state := r.book.Parts[p.Name]
		if (state.Status == Complete || state.Status == Broken) && slices.Equal(state.Args, p.Args) {
			r.o.Say("%s: complete, kept", p.Name)
			continue
		}
		r.o.Say("\n%s (%d of %d): %s", p.Name, i+1, len(r.o.Parts), p.command())
		err := r.one(ctx, p)
		if werr := r.Write(); werr != nil {
			return errors.Join(err, werr)
		}
		if ctx.Err() != nil {
			return &StoppedError{Part: p.Name, Out: r.o.Out}
		}
		if err != nil {
			r.o.Say("%s: %v", p.Name, err)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// StoppedError is the error of a run that was interrupted. It does not wrap the context's
// error, which would make every verb print the same text: this one says how to continue.
type StoppedError struct{ Part, Out string }

func (e *StoppedError) Error() string {
	return fmt.Sprintf("interrupted in %s; everything that was started has been stopped, and the pages are valid: go on with --resume --out %s", e.Part, cli.ShellWord(e.Out))
}

// one runs a part.
func (r *Run) one(ctx context.Context, p Part) error {
	state := State{Status: Running, Args: p.Args, Seconds: r.book.Parts[p.Name].Seconds}
	if !slices.Equal(r.book.Parts[p.Name].Args, p.Args) {
		state.Seconds = 0
	}
	finish := func(s Status, why string) error {
		state.Status, state.Error = s, why
		r.book.Parts[p.Name] = state
		return errors.Join(r.keep(), r.read(p))
	}
	if p.Bench != "" && !slices.ContainsFunc(r.o.Benches, func(b suite.Bench) bool { return b.Verb.Name() == p.Bench }) {
		return finish(LeftOut, "this program has no weir bench "+p.Bench)
	}
	// The part counts as interrupted until it has ended: a killed process cannot record its
	// end.
	if err := finish(Running, ""); err != nil {
		return err
	}
	began := time.Now()
	code, said, err := r.process(ctx, p)
	state.Seconds += time.Since(began).Seconds()
	switch {
	case err == nil:
		return finish(Complete, "")
	case ctx.Err() != nil:
		return finish(Interrupted, "")
	case code == exitShortfall:
		return finish(Broken, "")
	case strings.Contains(said, "; install it with: "): // the lab's error about a missing server
		return finish(LeftOut, said)
	}
	return errors.Join(fmt.Errorf("%s failed: %s", p.Name, said), finish(Failed, said))
}

// exitShortfall is the exit code of a bench in which a promise was broken.
const exitShortfall = 3

// stopTimeout is how long a part may take to stop.
const stopTimeout = time.Minute

// process runs the command of a part in its directory. said is the last line of its output.
func (r *Run) process(ctx context.Context, p Part) (code int, said string, err error) {
	dir := filepath.Join(r.o.Out, p.Name)
	args := append(slices.Clone(p.Args), "--out", dir)
	if _, err := os.Stat(dir); err == nil {
		args = append(args, "--resume")
	}
	log, err := os.OpenFile(filepath.Join(r.o.Out, p.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err.Error(), fmt.Errorf("write log: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	tail := &tail{}
	cmd := exec.CommandContext(ctx, r.o.Binary, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopTimeout
	cmd.Stdout = log
	out := []io.Writer{tail, log}
	if r.o.Output != nil {
		out = append(out, &untilDone{ctx: ctx, w: r.o.Output})
	}
	cmd.Stderr = io.MultiWriter(out...)
	// Ctrl-C in a terminal only reaches us, and we ask the part to stop once.
	if err = lab.StartCommand(cmd); err == nil {
		err = cmd.Wait()
	}
	return cmd.ProcessState.ExitCode(), tail.last(), err
}

// untilDone forwards writes until a context ends. After that, the output of a part only goes to
// its log: the run itself reports once that it was interrupted.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u *untilDone) Write(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return len(p), nil
	}
	return u.w.Write(p)
}

// tail keeps the end of what was written. It is safe for concurrent use.
type tail struct {
	mu sync.Mutex
	b  []byte // guarded by mu
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-tailBytes):]
	return len(p), nil
}

// last is the last line that was written, except the one that refers to the help.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	if n := len(lines) - 1; n > 0 && strings.HasPrefix(lines[n], "Run 'weir ") {
		lines = lines[:n]
	}
	return strings.TrimPrefix(strings.TrimSpace(lines[len(lines)-1]), "weir: ")
}

// read reads the results of a part.
func (r *Run) read(p Part) error {
	t, err := load(filepath.Join(r.o.Out, p.Name), r.o.Benches)
	if err != nil {
		// A result that cannot be read is reported, and does not affect the pages of other
		// parts.
		r.o.Say("%s: %v", p.Name, err)
		t = &PartResults{State: State{Status: Failed, Error: err.Error()}}
	} else {
		t.State = r.book.Parts[p.Name]
	}
	r.taken[p.Name] = t
	return nil
}

// keep records the states of all parts.
func (r *Run) keep() error {
	b, err := json.MarshalIndent(r.book, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what was run: %w", err)
	}
	if err := bench.ReplaceFile(filepath.Join(r.o.Out, bookFile), append(b, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", bookFile, err)
	}
	return nil
}

// environment is that of the run, with the servers of all parts.
func (r *Run) environment(parts []Part) *measure.Environment {
	env := r.env
	env.Servers = nil
	for _, p := range parts {
		for _, res := range r.taken[p.Name].Results {
			for _, s := range res.Env.Servers {
				if !slices.ContainsFunc(env.Servers, func(o measure.Server) bool { return o.Name == s.Name && o.Version == s.Version }) {
					env.Servers = append(env.Servers, measure.Server{Name: s.Name, Version: s.Version})
				}
			}
			env.Durability = "as each part's own report says"
		}
	}
	return &env
}

// pages makes all pages, the index among them.
func (r *Run) pages() map[string]*report.Doc {
	m := &Measured{parts: r.taken, All: r.o.All}
	if r.o.Pages != nil {
		return r.o.Pages(m, r.environment(r.o.All))
	}
	docs := Documents()
	pages := map[string]*report.Doc{"index": index(docs, m, r.environment(r.o.All), r.caught, r.o.All, r.o.Plan)}
	for i := range docs {
		d := &docs[i]
		parts := partsOf(r.o.All, d.ID)
		pages[d.ID] = d.page(m, r.environment(parts), r.caught[d.ID], parts)
	}
	return pages
}

// Write writes all pages, as HTML, Markdown and JSON.
func (r *Run) Write() error {
	for name, page := range r.pages() {
		for _, format := range []report.Format{report.FormatHTML, report.FormatMarkdown, report.FormatJSON} {
			var b bytes.Buffer
			if err := page.Write(&b, format); err != nil {
				return fmt.Errorf("write page %s: %w", name, err)
			}
			file := name + "." + string(format)
			if err := bench.ReplaceFile(filepath.Join(r.o.Out, file), b.Bytes()); err != nil {
				return fmt.Errorf("write %s: %w", file, err)
			}
		}
	}
	return nil
}

// Brief is the part of the index that fits a terminal.
func (r *Run) Brief() *report.Doc {
	full := r.pages()["index"]
	full.Findings = full.Findings[:min(1, len(full.Findings))]
	return full
}

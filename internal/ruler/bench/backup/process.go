package backupbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/lab"
	"github.com/weirdb/weir/internal/measure"
)

// pipeline is one or more programs, each reading the output of the one before.
type pipeline struct {
	stages [][]string
	env    []string          // in addition to this process's
	stdin  string            // file that the first program reads; "" for none
	stdout string            // file that the last program writes; "" for none
	said   *bytes.Buffer     // output of the last program; nil for stdout
	looked func(bytes int64) // called with each sample of its memory; may be nil
}

// command is a pipeline of one program.
func command(argv ...string) pipeline { return pipeline{stages: [][]string{argv}} }

// String is the command line for readers, with base names of files.
func (p pipeline) String() string {
	var parts []string
	for _, argv := range p.stages {
		short := slices.Clone(argv)
		for i := range short {
			if strings.HasPrefix(short[i], "/") {
				short[i] = filepath.Base(short[i])
			}
		}
		parts = append(parts, strings.Join(short, " "))
	}
	return strings.Join(parts, " | ")
}

// usage is what a pipeline used.
type usage struct {
	seconds float64
	process measure.Usage // CPU time of all programs and their children
	peak    int64         // largest memory that they used together, in bytes
}

// How often memory is sampled: the programs alone, which is cheap, and less often with their
// children, for which all processes of the machine are listed.
const (
	lookEvery = 20 * time.Millisecond
	treeEvery = 10
)

// stderrKept is how much of a program's standard error is kept for an error.
const stderrKept = 4 << 10

// run runs a pipeline to its end. If ctx ends, it interrupts all programs.
func run(ctx context.Context, p pipeline) (u usage, err error) {
	cmds := make([]*exec.Cmd, len(p.stages))
	said := make([]bytes.Buffer, len(p.stages))
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	open := func(f *os.File, err error) (*os.File, error) {
		if err == nil {
			files = append(files, f)
		}
		return f, err
	}
	for i, argv := range p.stages {
		c := exec.CommandContext(ctx, argv[0], argv[1:]...)
		c.Env = append(os.Environ(), p.env...)
		c.Stderr = &said[i]
		c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGTERM) }
		c.WaitDelay = 20 * time.Second
		cmds[i] = c
	}
	if p.stdin != "" {
		if cmds[0].Stdin, err = open(os.Open(p.stdin)); err != nil {
			return u, fmt.Errorf("read %s: %w", p.stdin, err)
		}
	}
	if p.stdout != "" {
		if cmds[len(cmds)-1].Stdout, err = open(os.Create(p.stdout)); err != nil {
			return u, fmt.Errorf("write %s: %w", p.stdout, err)
		}
	}
	if p.said != nil {
		cmds[len(cmds)-1].Stdout = p.said
	}
	var ends []*os.File // of pipes; once started, the programs have their own copies
	for i := range len(cmds) - 1 {
		r, w, err := os.Pipe()
		if err != nil {
			return u, fmt.Errorf("make pipe: %w", err)
		}
		cmds[i].Stdout, cmds[i+1].Stdin = w, r
		ends = append(ends, r, w)
	}
	began := time.Now()
	started := 0
	for _, c := range cmds {
		if err = lab.StartCommand(c); err != nil {
			err = fmt.Errorf("start %s: %w", filepath.Base(c.Path), err)
			break
		}
		started++
	}
	for _, f := range ends {
		err = errors.Join(err, f.Close())
	}
	pids := make([]int, started)
	for i := range pids {
		pids[i] = cmds[i].Process.Pid
	}
	stop := watchMemory(pids, p.looked)
	for i, c := range cmds[:started] {
		if waitErr := c.Wait(); waitErr != nil {
			err = errors.Join(err, failure(ctx, c, waitErr, said[i].Bytes()))
		}
		u.process.UserSeconds += c.ProcessState.UserTime().Seconds()
		u.process.SystemSeconds += c.ProcessState.SystemTime().Seconds()
		if r, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok {
			u.process.Voluntary += r.Nvcsw
			u.process.Involuntary += r.Nivcsw
		}
	}
	u.seconds = time.Since(began).Seconds()
	u.peak = stop()
	u.process.PeakRSSBytes, u.process.RSSBytes, u.process.Processes = u.peak, u.peak, started
	return u, err
}

// failure is the error of a program, with the end of its output.
func failure(ctx context.Context, c *exec.Cmd, err error, said []byte) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	words := strings.TrimSpace(string(said[max(0, len(said)-stderrKept):]))
	return fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, strings.ReplaceAll(words, "\n", "; "))
}

// watchMemory samples the memory of processes and their children until stop is called, which
// returns the largest sum. The kernel's high-water mark of an ended program is useless: it
// starts at the memory of this process, which forked it. Programs that run for less than
// lookEvery are sampled once, right after their start.
func watchMemory(pids []int, looked func(bytes int64)) (stop func() int64) {
	look := func(children bool) int64 {
		bytes := memoryOf(pids, children)
		if looked != nil {
			looked(bytes)
		}
		return bytes
	}
	most := look(true) // now, not when another goroutine is scheduled
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(lookEvery)
		defer t.Stop()
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			case <-t.C:
				most = max(most, look(n%treeEvery == 0))
			}
		}
	}()
	return func() int64 {
		close(done)
		<-ended
		return most
	}
}

// memoryOf is the current memory of processes, and with children also of all processes below
// them. Ended processes count as 0.
func memoryOf(pids []int, children bool) int64 {
	var sum int64
	for _, pid := range pids {
		read := measure.Process
		if children {
			read = measure.Tree
		}
		if u, err := read(pid); err == nil {
			sum += max(u.RSSBytes, u.PeakRSSBytes)
		}
	}
	return sum
}

// flushFiles flushes all files below a directory. That costs almost nothing if their writer has
// flushed them.
func flushFiles(dir string) error {
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		return errors.Join(f.Sync(), f.Close())
	})
	if err != nil {
		return fmt.Errorf("flush archive: %w", err)
	}
	return nil
}

// diskBytes is the size of all files below a directory.
func diskBytes(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure archive: %w", err)
	}
	return sum, nil
}

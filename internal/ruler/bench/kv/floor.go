package kvbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/measure"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
)

// SystemFloor is the least that a durable store needs here: a table in memory behind
// one thread, whose writes are answered when a log is on the disk; with three replicas,
// when one other process has flushed them, too. It elects nobody, recovers nothing and
// checks nothing.
const SystemFloor System = "floor"

// The sides of the floor, by the number of logs.
const (
	oneLog    = "floor, one log"
	threeLogs = "floor, three logs"
)

// The hidden verbs of its processes.
const (
	storeVerb  = "store"
	appendVerb = "append"
)

// floorCluster is the floor with so many logs.
func (r *run) floorCluster(logs int) cluster {
	return cluster{system: SystemFloor, replicas: logs, durability: onDisk, procs: r.o.Procs}
}

// floors are the sides of the floor at a load, if they are asked for.
func (r *run) floors(s shape) []side {
	if !r.o.Floor {
		return nil
	}
	return []side{
		{name: oneLog, cluster: r.floorCluster(1), shape: s},
		{name: threeLogs, cluster: r.floorCluster(3), shape: s},
	}
}

// floorStore is a floor that runs.
type floorStore struct {
	processes
	all  []*exec.Cmd
	addr string
	dir  string
}

// startFloor starts the followers, then the store that connects to them. Logs lie in a
// directory below dir.
func startFloor(ctx context.Context, binary, dir string, c cluster) (_ store, err error) {
	f := &floorStore{}
	f.pids = func() []int {
		var out []int
		for _, cmd := range f.all {
			out = append(out, cmd.Process.Pid)
		}
		return out
	}
	if f.dir, err = os.MkdirTemp(dir, "floor-"); err != nil {
		return nil, fmt.Errorf("start the floor: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop(ctx))
		}
	}()
	var followers []string
	for i := range c.replicas - 1 {
		addr, err := f.start(ctx, binary, appendVerb, f.log(i+1))
		if err != nil {
			return nil, err
		}
		followers = append(followers, addr)
	}
	f.addr, err = f.start(ctx, binary, append([]string{storeVerb, f.log(0)}, followers...)...)
	return f, err
}

func (f *floorStore) log(i int) string { return filepath.Join(f.dir, "log"+strconv.Itoa(i)) }

// start starts a process, which says where it listens. The store ends when its input
// does, a follower when the store has gone.
func (f *floorStore) start(ctx context.Context, binary string, args ...string) (addr string, err error) {
	cmd := exec.Command(binary, append([]string{"bench", "kv"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as replicas, it ends when we say so
	// No garbage is made, and nothing else is to run on its threads.
	cmd.Env = append(cmd.Environ(), "GODEBUG=asyncpreemptoff=1")
	_, err = cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(err, outErr); err != nil {
		return "", fmt.Errorf("start the floor: %w", err)
	}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start the floor: %w", err)
	}
	f.all = append(f.all, cmd)
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("start the floor: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return strings.TrimSpace(addr), nil
}

func (f *floorStore) driver(shape) kvload.Driver { return &kvload.Plain{Addr: f.addr} }

func (f *floorStore) counters(context.Context) (map[string]float64, error) { return nil, nil }

func (f *floorStore) describe() measure.Server {
	return measure.Server{Name: "floor", Version: "this program", Settings: map[string]string{"logs": strconv.Itoa(len(f.all)), "fsync": "true"}}
}

// stop ends the processes, which have nothing to put in order.
func (f *floorStore) stop(context.Context) error {
	for _, cmd := range f.all {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // says that it was killed
	}
	f.all = nil
	return os.RemoveAll(f.dir)
}

func floorCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: storeVerb + " LOG [FOLLOWER...]", Short: "Serve a table in memory, and do nothing else but to log its writes",
			Hidden: true, // a part of weir bench kv --floor
			Args:   cobra.MinimumNArgs(1),
			RunE:   func(cmd *cobra.Command, args []string) error { return serveTable(args[0], args[1:], cmd.OutOrStdout()) },
		},
		{
			Use: appendVerb + " LOG", Short: "Append to a log what another process sends",
			Hidden: true, // a part of weir bench kv --floor
			Args:   cobra.ExactArgs(1),
			RunE:   func(cmd *cobra.Command, args []string) error { return appendLog(args[0], cmd.OutOrStdout()) },
		},
	}
}

package kvbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/floor"
	kvload "github.com/weirdb/weir/internal/ruler/bench/kv/load"
)

// SystemFloor is the lower bound for a durable store: a table in memory behind one thread,
// whose writes are answered when they are in a log on disk, or, with three replicas, when one
// other process has flushed them, too. It has no elections, no recovery and no checks.
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

// floorCluster is the floor with that many logs.
func (r *run) floorCluster(logs int) cluster {
	return cluster{system: SystemFloor, replicas: logs, durability: onDisk, procs: r.o.Procs}
}

// floors are the sides of the floor for a load, if requested.
func (r *run) floors(s shape) []side {
	if !r.o.Floor {
		return nil
	}
	return []side{
		{name: oneLog, cluster: r.floorCluster(1), shape: s},
		{name: threeLogs, cluster: r.floorCluster(3), shape: s},
	}
}

// floorStore is a running floor.
type floorStore struct {
	processes
	all  []*floor.Process
	addr string
	dir  string
}

// startFloor starts the followers, then the store, which connects to them. Logs are in a
// directory below dir.
func startFloor(ctx context.Context, binary, dir string, c cluster) (_ store, err error) {
	f := &floorStore{}
	f.pids = func() []int {
		var out []int
		for _, p := range f.all {
			out = append(out, p.PID())
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
	// start starts a process. The store exits when its input ends, a follower when the store
	// has gone.
	start := func(args ...string) (addr string, err error) {
		p, err := floor.Start(ctx, binary, append([]string{"bench", "kv"}, args...)...)
		if err != nil {
			return "", err
		}
		f.all = append(f.all, p)
		return p.Addr, nil
	}
	var followers []string
	for i := range c.replicas - 1 {
		addr, err := start(appendVerb, f.log(i+1))
		if err != nil {
			return nil, err
		}
		followers = append(followers, addr)
	}
	f.addr, err = start(append([]string{storeVerb, f.log(0)}, followers...)...)
	return f, err
}

func (f *floorStore) log(i int) string { return filepath.Join(f.dir, "log"+strconv.Itoa(i)) }

func (f *floorStore) driver(shape) kvload.Driver { return &kvload.Plain{Addr: f.addr} }

func (f *floorStore) counters(context.Context) (map[string]float64, error) { return nil, nil }

func (f *floorStore) describe() measure.Server {
	return measure.Server{Name: "floor", Version: "this program", Settings: map[string]string{"logs": strconv.Itoa(len(f.all)), "fsync": "true"}}
}

func (f *floorStore) stop(context.Context) error {
	for _, p := range f.all {
		_ = p.Stop() // a follower may have exited with the store
	}
	f.all = nil
	return os.RemoveAll(f.dir)
}

func floorCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: storeVerb + " LOG [FOLLOWER...]", Short: "Serve a table in memory, and only log its writes",
			Hidden: true, // a part of weir bench kv --floor
			Args:   cobra.MinimumNArgs(1),
			RunE:   func(cmd *cobra.Command, args []string) error { return serveTable(args[0], args[1:], cmd.OutOrStdout()) },
		},
		{
			Use: appendVerb + " LOG", Short: "Append what another process sends to a log",
			Hidden: true, // a part of weir bench kv --floor
			Args:   cobra.ExactArgs(1),
			RunE:   func(cmd *cobra.Command, args []string) error { return appendLog(args[0], cmd.OutOrStdout()) },
		},
	}
}

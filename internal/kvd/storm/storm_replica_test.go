package storm_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/internal/kvd/wal/waltest"
)

// asReplica makes the test's program a replica that takes the flags of weir kv
// serve, and of which a file says what ails its disk and its clock.
const asReplica = "WEIR_TEST_AS_REPLICA"

// ailments are what a replica's file says: how many nanoseconds its wall clock is
// off, and whether its disk hangs, 0 or 1.
const ailments = "%d %d"

// stormReplica runs a replica until SIGTERM.
func stormReplica(args []string) error {
	cfg, admin, err := stormConfig(args)
	if err != nil {
		return err
	}
	disk, err := wal.Directory(cfg.Dir)
	if err != nil {
		return err
	}
	hanging := &waltest.Hanging{Disk: disk}
	cfg.Disk = hanging
	var off atomic.Int64
	cfg.Clock = func() consensus.Clock {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			panic(err)
		}
		return consensus.Clock{Mono: ts.Nano(), Wall: time.Now().UnixNano() + off.Load()}
	}
	ail := func() {
		var wall int64
		var hangs int
		text, err := os.ReadFile(cfg.Dir + ".ail")
		if err != nil {
			return
		}
		if _, err := fmt.Sscanf(string(text), ailments, &wall, &hangs); err != nil {
			return // it is being written
		}
		off.Store(wall)
		if hangs == 1 {
			hanging.Hang()
		} else {
			hanging.Work()
		}
	}
	ail()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		for range time.Tick(5 * time.Millisecond) {
			ail()
		}
	}()
	r, err := replica.Open(cfg)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", admin)
	if err != nil {
		return err
	}
	go func() { _ = r.Serve(ctx, ln, prometheus.NewRegistry(), nil, cfg.Log) }()
	return r.Run(ctx)
}

func stormConfig(args []string) (cfg replica.Config, admin string, err error) {
	f := flag.NewFlagSet("replica", flag.ContinueOnError)
	f.Uint64Var(&cfg.ID, "id", 0, "")
	f.StringVar(&cfg.Dir, "data", "", "")
	f.StringVar(&cfg.Redis, "resp", "", "")
	f.StringVar(&cfg.Preset, "preset", "raft-ht", "")
	f.BoolVar(&cfg.Join, "join", false, "")
	f.DurationVar(&cfg.Election, "election-timeout", 0, "")
	f.Int64Var(&cfg.SnapshotBytes, "snapshot-bytes", 0, "")
	peers := f.String("peers", "", "")
	f.StringVar(&admin, "admin", "", "")
	if err := f.Parse(args); err != nil {
		return cfg, "", err
	}
	if cfg.Members, err = replica.ParseMembers(*peers); err != nil {
		return cfg, "", err
	}
	cfg.Switches, err = consensus.Preset(cfg.Preset)
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg.SegmentBytes = 4 << 20
	return cfg, admin, err
}

// runStormReplica is the end of a program that is a replica.
func runStormReplica() {
	if err := stormReplica(os.Args[3:]); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "replica ends:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

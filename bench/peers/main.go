// Command weir-peers runs other outboxes under the load of weir bench
// outbox. It is a module of its own, so that weir depends on none of them.
//
//	weir-peers list   prints the outboxes, as JSON
//	weir-peers run    runs the job read from standard input, and prints its result as JSON
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
)

// peer is an outbox that can be run.
type peer struct {
	outboxload.Peer
	module string // whose version is the peer's
	open   func(ctx context.Context, dsn string) (subject, error)
}

// subject is an outbox with connections of its own.
type subject interface {
	outboxload.Subject
	Close()
}

// peers lists them.
func peers() []peer {
	return []peer{
		{outboxload.Peer{Name: "river", Schemes: []string{"postgres"}}, "github.com/riverqueue/river", openRiver},
		{outboxload.Peer{Name: "watermill-sql", Schemes: []string{"postgres"}, Ordered: true}, "github.com/ThreeDotsLabs/watermill-sql/v4", openWatermill},
	}
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := do(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "weir-peers:", err)
		os.Exit(1)
	}
}

func do(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "list":
		return list(out)
	case len(args) == 1 && args[0] == "run":
		return run(ctx, in, out)
	default:
		return errors.New("want list or run")
	}
}

func list(out io.Writer) error {
	versions := make(map[string]string)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			versions[m.Path] = m.Version
		}
	}
	var all []outboxload.Peer
	for _, p := range peers() {
		p.Version = versions[p.module]
		all = append(all, p.Peer)
	}
	return json.NewEncoder(out).Encode(all)
}

func run(ctx context.Context, in io.Reader, out io.Writer) error {
	var job outboxload.Job
	if err := json.NewDecoder(in).Decode(&job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	for _, p := range peers() {
		if p.Name != job.Peer {
			continue
		}
		s, err := p.open(ctx, job.DSN)
		if err != nil {
			return fmt.Errorf("open %s: %w", p.Name, err)
		}
		defer s.Close()
		got, err := job.Run(ctx, s)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(got)
	}
	return fmt.Errorf("no peer %q", job.Peer)
}

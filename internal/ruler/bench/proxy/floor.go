package proxybench

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
)

// copyVerb is the hidden verb that runs a copier.
const copyVerb = "copy"

// floor is a copier in a process of its own: what is measured through it is the least
// that a proxy with a server connection for each client costs here.
type floor struct {
	cmd  *exec.Cmd
	addr string
}

// startFloor runs a copier before the server of a DSN.
func startFloor(ctx context.Context, binary, serverDSN string) (_ *floor, err error) {
	u, err := url.Parse(serverDSN)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("start a copier: it needs the server's host and port")
	}
	f := &floor{cmd: exec.Command(binary, "bench", "proxy", copyVerb, u.Host)}
	// As weir, it ends when we say so, not at Ctrl-C.
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// No garbage is made, and nothing else is to run on its thread.
	f.cmd.Env = append(f.cmd.Environ(), "GODEBUG=asyncpreemptoff=1")
	// It ends when its input does, and so with us in any case.
	if _, err := f.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start a copier: %w", err)
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start a copier: %w", err)
	}
	var said strings.Builder
	f.cmd.Stderr = &said
	if err := f.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a copier: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.cmd.Process.Kill() })
	defer stop()
	f.addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		_ = f.stop()
		return nil, fmt.Errorf("start a copier: %w: %s", err, said.String())
	}
	f.addr = strings.TrimSpace(f.addr)
	return f, nil
}

// stop ends the copier. It has nothing to put in order.
func (f *floor) stop() error {
	if err := f.cmd.Process.Kill(); err != nil {
		_ = f.cmd.Wait()
		return fmt.Errorf("stop the copier: it ended by itself: %w", err)
	}
	_ = f.cmd.Wait() // says that it was killed
	return nil
}

// copied is the way through the copier.
func (r *rig) copied() (way, error) {
	dsn, err := through(r.direct().dsn, r.floor.addr)
	return way{
		name: "copy", dsn: dsn, window: bench.NotApplicable, via: "copy",
		proxy: func() (measure.Usage, error) { return measure.Process(r.floor.cmd.Process.Pid) },
	}, err
}

// plain are the ways that every experiment begins with.
func (r *rig) plain() ([]way, error) {
	if r.floor == nil {
		return []way{r.direct()}, nil
	}
	w, err := r.copied()
	return []way{r.direct(), w}, err
}

func copyCommand() *cobra.Command {
	return &cobra.Command{
		Use:    copyVerb + " ADDRESS",
		Short:  "Copy bytes between clients and a server, and do nothing else",
		Hidden: true, // a part of weir bench proxy --floor
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return copyBytes(args[0], cmd.OutOrStdout()) },
	}
}

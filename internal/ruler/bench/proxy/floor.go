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

// groupFlag has it join the load's INSERTs.
const groupFlag = "group"

// floor is a copier in a process of its own: what is measured through it is the least
// that a proxy with a server connection for each client costs here.
type floor struct {
	cmd  *exec.Cmd
	addr string
}

// startFloor runs a copier before the server of a DSN, or one that joins INSERTs.
func startFloor(ctx context.Context, binary, serverDSN string, group bool) (_ *floor, err error) {
	u, err := url.Parse(serverDSN)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("start a copier: it needs the server's host and port")
	}
	args := []string{"bench", "proxy", copyVerb, u.Host}
	if group {
		args = append(args, "--"+groupFlag)
	}
	f := &floor{cmd: exec.Command(binary, args...)}
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

// way is the one through the process.
func (f *floor) way(name, direct string) (way, error) {
	dsn, err := through(direct, f.addr)
	return way{
		name: name, dsn: dsn, window: bench.NotApplicable, via: name,
		proxy: func() (measure.Usage, error) { return measure.Process(f.cmd.Process.Pid) },
	}, err
}

// plain are the ways that every experiment begins with.
func (r *rig) plain() ([]way, error) {
	if r.floor == nil {
		return []way{r.direct()}, nil
	}
	w, err := r.floor.way("copy", r.direct().dsn)
	return []way{r.direct(), w}, err
}

// plainInserts are plain for INSERTs, with the least that joins them.
func (r *rig) plainInserts() ([]way, error) {
	ways, err := r.plain()
	if err != nil || r.joins == nil {
		return ways, err
	}
	w, err := r.joins.way("group", r.direct().dsn)
	return append(ways, w), err
}

func copyCommand() *cobra.Command {
	group := false
	cmd := &cobra.Command{
		Use:    copyVerb + " ADDRESS",
		Short:  "Copy bytes between clients and a server, and do nothing else",
		Hidden: true, // a part of weir bench proxy --floor
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return copyBytes(args[0], group, cmd.OutOrStdout()) },
	}
	cmd.Flags().BoolVar(&group, groupFlag, false, "join the INSERTs of the load into groups")
	return cmd
}

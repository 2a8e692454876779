package proxybench

import (
	"context"
	"errors"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/floor"
)

// copyVerb is the hidden verb that runs a copier.
const copyVerb = "copy"

// groupFlag names the protocol in which the copier groups the load's writes.
const groupFlag = "group"

// The protocols of groupFlag.
const (
	joinsPostgres = "postgres"
	joinsMySQL    = "mysql"
)

// startFloor runs a copier in front of the server of a DSN, or one that groups writes of a
// protocol: the lower bound for a proxy that has a server connection per client.
func startFloor(ctx context.Context, binary, serverDSN, group string) (*floor.Process, error) {
	u, err := url.Parse(serverDSN)
	if err != nil || u.Host == "" {
		return nil, errors.New("start a copier: it needs the server's host and port")
	}
	args := []string{"bench", "proxy", copyVerb, u.Host}
	if group != "" {
		args = append(args, "--"+groupFlag, group)
	}
	return floor.Start(ctx, binary, args...)
}

// floorWay is the way through a floor.
func floorWay(f *floor.Process, name, direct string) (way, error) {
	dsn, err := through(direct, f.Addr)
	return way{
		name: name, dsn: dsn, window: bench.NotApplicable, via: name,
		proxy: func() (measure.Usage, error) { return measure.Process(f.PID()) },
	}, err
}

// plain are the ways that every experiment starts with.
func (r *rig) plain() ([]way, error) {
	if r.floor == nil {
		return []way{r.direct()}, nil
	}
	w, err := floorWay(r.floor, "copy", r.direct().dsn)
	return []way{r.direct(), w}, err
}

// plainJoined are the plain ways for writes, with the floor that groups them.
func (r *rig) plainJoined() ([]way, error) {
	ways, err := r.plain()
	if err != nil || r.joins == nil {
		return ways, err
	}
	w, err := floorWay(r.joins, "group", r.direct().dsn)
	return append(ways, w), err
}

func copyCommand() *cobra.Command {
	group := ""
	cmd := &cobra.Command{
		Use:    copyVerb + " ADDRESS",
		Short:  "Only copy bytes between clients and a server",
		Hidden: true, // a part of weir bench proxy --floor
		Args:   cobra.ExactArgs(1),
		RunE:   func(cmd *cobra.Command, args []string) error { return copyBytes(args[0], group, cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVar(&group, groupFlag, "", "group the writes of the load, in the protocol postgres or mysql")
	return cmd
}

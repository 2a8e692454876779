package kvcmd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

// inspect asks all replicas for their state, by ascending id. A replica that hangs does not
// hide the others: half of the time is for connecting, the rest for the answers.
func inspect(ctx context.Context, c *kv.Client) ([]replica.Status, map[string]error, error) {
	up, down := settledReplicas(ctx, c)
	type answer struct {
		id  uint64
		raw json.RawMessage
		err error
	}
	answers := make(chan answer, len(up))
	for id := range up {
		go func() {
			raw, err := c.Inspect(ctx, id)
			answers <- answer{id, raw, err}
		}()
	}
	var list []replica.Status
	for range up {
		a := <-answers
		if a.err != nil {
			down[up[a.id]] = a.err
			continue
		}
		var s replica.Status
		if err := json.Unmarshal(a.raw, &s); err != nil {
			return nil, nil, fmt.Errorf("state of replica %d: %w", a.id, err)
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b replica.Status) int { return cmp.Compare(a.ID, b.ID) })
	return list, down, nil
}

// errNoConnection is the error for a replica that neither accepted nor refused a connection.
var errNoConnection = errors.New("no connection within --timeout")

// settledReplicas waits until each endpoint is connected or has failed, for at most half of the
// remaining time.
func settledReplicas(ctx context.Context, c *kv.Client) (up map[uint64]string, down map[string]error) {
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
	}
	for {
		up, down = c.Replicas()
		trying := false
		for _, err := range down {
			trying = trying || err == nil
		}
		if !trying {
			return up, down
		}
		select {
		case <-ctx.Done():
			for a, err := range down {
				if err == nil {
					down[a] = errNoConnection
				}
			}
			return up, down
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func newKVStatus() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[kvReplicas]
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of every replica",
		Long: `Show the state of every endpoint: role, term, how much of the log is applied and how
much is on disk, snapshot, keys, sessions. The exit code is 3 if a replica does not
answer or none leads.`,
		Example: "  weir kv status\n  weir kv status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				list, down, err := inspect(ctx, c)
				if err != nil {
					return err
				}
				if err := printKVStatus(cmd, list, down, &asJSON); err != nil {
					return err
				}
				leads := slices.ContainsFunc(list, func(s replica.Status) bool { return s.Leader == s.ID && s.Open })
				switch {
				case !leads:
					return cli.Shortfall(errors.New("no replica that answers leads"))
				case len(down) > 0:
					return cli.Shortfall(fmt.Errorf("%d of %d replicas do not answer", len(down), len(list)+len(down)))
				}
				return nil
			})
			var none *kv.UnreachableError
			if errors.As(err, &none) && asJSON.Given() {
				for a, why := range none.Down {
					none.Down[a] = cmp.Or(why, errNoConnection)
				}
				if failed := printKVStatus(cmd, nil, none.Down, &asJSON); failed != nil {
					return failed
				}
			}
			if errors.Is(err, context.DeadlineExceeded) { // no replica answers
				err = cli.Shortfall(err)
			}
			return err
		},
	}
	k.add(cmd)
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

// kvReplicas is the output of weir kv status --json.
type kvReplicas struct {
	Replicas []kvReplica       `json:"replicas"` // those that answered
	Down     map[string]string `json:"down"`     // by address: why a replica did not answer
}

// kvReplica is a replica in JSON.
type kvReplica struct {
	ID         uint64 `json:"id"`            // of the replica
	Role       string `json:"role"`          // such as leader, follower or learner
	Ready      bool   `json:"ready"`         // it serves clients
	Why        string `json:"why,omitempty"` // why it is not ready
	Leader     uint64 `json:"leader"`        // id of its leader; 0: none
	Term       uint64 `json:"term"`          // its current term
	Revision   uint64 `json:"revision"`      // of the store: incremented by each change
	Applied    uint64 `json:"applied"`       // index of the last log entry that it has applied
	Commit     uint64 `json:"commit"`        // index of the last log entry that it knows to be committed
	Last       uint64 `json:"last"`          // index of the last entry of its log
	Durable    uint64 `json:"durable"`       // index of the last entry on its disk
	Snapshot   uint64 `json:"snapshot"`      // index of its newest snapshot
	Keys       int    `json:"keys"`          // number of keys
	Bytes      int64  `json:"bytes"`         // of keys and values
	Sessions   int    `json:"sessions"`      // clients that the cluster remembers
	Preset     string `json:"preset"`        // consensus preset
	Durability string `json:"durability"`    // how durable a write is that it acknowledges
}

func jsonReplica(s *replica.Status) kvReplica {
	j := kvReplica{
		ID: s.ID, Role: roleOf(s), Leader: s.Leader, Term: s.Term, Revision: s.Revision, Applied: s.Applied, Commit: s.Commit, Last: s.Last,
		Durable: s.Durable, Snapshot: s.Snapshot, Keys: s.Keys, Bytes: s.Bytes, Sessions: s.Sessions, Preset: s.Preset, Durability: s.Durability,
	}
	if err := s.Ready(); err != nil {
		j.Why = err.Error()
	} else {
		j.Ready = true
	}
	return j
}

// roleOf returns the current role of a replica.
func roleOf(s *replica.Status) string {
	switch {
	case s.Leader == s.ID && s.Open:
		return "leader"
	case s.Leader == s.ID:
		return "leader, opening"
	case s.Leader == 0:
		return "no leader"
	case !s.Voter:
		return "learner"
	}
	return "follower"
}

func printKVStatus(cmd *cobra.Command, list []replica.Status, down map[string]error, asJSON *cli.JSON[kvReplicas]) error {
	out := cmd.OutOrStdout()
	if asJSON.Given() {
		j := kvReplicas{[]kvReplica{}, map[string]string{}}
		for i := range list {
			j.Replicas = append(j.Replicas, jsonReplica(&list[i]))
		}
		for a, err := range down {
			j.Down[a] = fmt.Sprint(err)
		}
		return asJSON.Print(out, j)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROLE\tTERM\tAPPLIED\tDURABLE\tSNAPSHOT\tKEYS\tSESSIONS\tPRESET\tDURABILITY")
	for _, s := range list {
		durable := strconv.FormatUint(s.Durable, 10)
		if s.Durability == "memory" {
			durable = "-"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%s\n", s.ID, roleOf(&s), s.Term, s.Applied, durable, s.Snapshot, s.Keys, s.Sessions, s.Preset, s.Durability)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range slices.Sorted(maps.Keys(down)) {
		if _, err := fmt.Fprintf(out, "%s does not answer: %v\n", a, down[a]); err != nil {
			return err
		}
	}
	return nil
}

package kvcmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/inspect"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/kv"
)

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
				cluster, err := inspect.Ask(ctx, c)
				if err != nil {
					return err
				}
				if err := printKVStatus(cmd, cluster, &asJSON); err != nil {
					return err
				}
				if err := cluster.Check(); err != nil {
					return cli.Shortfall(err)
				}
				return nil
			})
			var none *kv.UnreachableError
			if errors.As(err, &none) && asJSON.Given() {
				if failed := printKVStatus(cmd, inspect.Unreachable(none), &asJSON); failed != nil {
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
		ID: s.ID, Role: inspect.Role(s), Leader: s.Leader, Term: s.Term, Revision: s.Revision, Applied: s.Applied, Commit: s.Commit, Last: s.Last,
		Durable: s.Durable, Snapshot: s.Snapshot, Keys: s.Keys, Bytes: s.Bytes, Sessions: s.Sessions, Preset: s.Preset, Durability: s.Durability,
	}
	if err := s.Ready(); err != nil {
		j.Why = err.Error()
	} else {
		j.Ready = true
	}
	return j
}

func printKVStatus(cmd *cobra.Command, cluster *inspect.Cluster, asJSON *cli.JSON[kvReplicas]) error {
	out := cmd.OutOrStdout()
	if asJSON.Given() {
		j := kvReplicas{[]kvReplica{}, map[string]string{}}
		for i := range cluster.Replicas {
			j.Replicas = append(j.Replicas, jsonReplica(&cluster.Replicas[i]))
		}
		for a, err := range cluster.Down {
			j.Down[a] = fmt.Sprint(err)
		}
		return asJSON.Print(out, j)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROLE\tTERM\tAPPLIED\tDURABLE\tSNAPSHOT\tKEYS\tSESSIONS\tPRESET\tDURABILITY")
	for _, s := range cluster.Replicas {
		durable := strconv.FormatUint(s.Durable, 10)
		if s.Durability == "memory" {
			durable = "-"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%s\n", s.ID, inspect.Role(&s), s.Term, s.Applied, durable, s.Snapshot, s.Keys, s.Sessions, s.Preset, s.Durability)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, a := range slices.Sorted(maps.Keys(cluster.Down)) {
		if _, err := fmt.Fprintf(out, "%s does not answer: %v\n", a, cluster.Down[a]); err != nil {
			return err
		}
	}
	return nil
}

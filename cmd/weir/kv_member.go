package main

import (
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

	"github.com/weirdb/weir/internal/replica"
	"github.com/weirdb/weir/internal/replica/wal"
	"github.com/weirdb/weir/kv"
)

// inspect asks all connected replicas for their state, by rising id.
func inspect(ctx context.Context, c *kv.Client) ([]replica.Status, map[string]error, error) {
	up, down := settledReplicas(ctx, c)
	var list []replica.Status
	for _, id := range slices.Sorted(maps.Keys(up)) {
		raw, err := c.Inspect(ctx, id)
		if err != nil {
			down[up[id]] = err
			continue
		}
		var s replica.Status
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, nil, fmt.Errorf("state of replica %d: %w", id, err)
		}
		list = append(list, s)
	}
	return list, down, nil
}

// settledReplicas waits until each endpoint is either connected or has failed.
func settledReplicas(ctx context.Context, c *kv.Client) (up map[uint64]string, down map[string]error) {
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
			return up, down
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func newKVStatus() *cobra.Command {
	var k kvClient
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of every replica",
		Long: `Show the state of every endpoint: role, term, how much of the log it has applied and
on disk, snapshot, keys, sessions. Exit code 3 if a replica does not answer or none
leads.`,
		Example: "  weir kv status\n  weir kv status --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				list, down, err := inspect(ctx, c)
				if err != nil {
					return err
				}
				if err := printKVStatus(cmd, list, down, k.json); err != nil {
					return err
				}
				leads := slices.ContainsFunc(list, func(s replica.Status) bool { return s.Leader == s.ID && s.Open })
				switch {
				case !leads:
					return Shortfall(errors.New("no replica that answers leads"))
				case len(down) > 0:
					return Shortfall(fmt.Errorf("%d of %d replicas do not answer", len(down), len(list)+len(down)))
				}
				return nil
			})
		},
	}
	k.add(cmd)
	return cmd
}

func printKVStatus(cmd *cobra.Command, list []replica.Status, down map[string]error, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		j := struct {
			Replicas []replica.Status  `json:"replicas"`
			Down     map[string]string `json:"down"`
		}{list, map[string]string{}}
		for a, err := range down {
			j.Down[a] = fmt.Sprint(err)
		}
		return printJSON(out, j)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tROLE\tTERM\tAPPLIED\tDURABLE\tSNAPSHOT\tKEYS\tSESSIONS\tPRESET\tDURABILITY")
	for _, s := range list {
		role := "follower"
		switch {
		case s.Leader == s.ID && s.Open:
			role = "leader"
		case s.Leader == s.ID:
			role = "leader, opening"
		case s.Leader == 0:
			role = "no leader"
		case !s.Voter:
			role = "learner"
		}
		durable := strconv.FormatUint(s.Durable, 10)
		if s.Durability == "memory" {
			durable = "-"
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%s\n", s.ID, role, s.Term, s.Applied, durable, s.Snapshot, s.Keys, s.Sessions, s.Preset, s.Durability)
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

func newKVMember() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "member",
		Short: "List and change the members of the cluster",
		Long: `Members vote (voters) or only receive the log (learners). A replica whose disk is
lost or damaged must not come back under its number: what it voted for is forgotten.
Replace it:

  weir kv serve --id 4 --join --peers … --data …     on the new machine
  weir kv member add 4=host:port                     it catches up as a learner
  weir kv member replace 2 4                         4 votes and 2 leaves, in one step

No number is ever used again.`,
	}
	cmd.AddCommand(newKVMemberList(),
		newKVMemberChange("add ID=HOST:PORT", "Add a learner", 1, func(args []string) (kv.MemberChange, error) {
			m, err := replica.ParseMember(args[0])
			return kv.MemberChange{Kind: kv.AddLearner, Member: m}, err
		}),
		newKVMemberChange("promote ID", "Let a learner vote", 1, memberVerb(kv.Promote)),
		newKVMemberChange("remove ID", "Remove a member", 1, memberVerb(kv.Remove)),
		newKVMemberChange("replace OLD NEW", "Let learner NEW vote in the place of OLD, in one step", 2, func(args []string) (kv.MemberChange, error) {
			old, err := memberID(args[0])
			if err != nil {
				return kv.MemberChange{}, err
			}
			id, err := memberID(args[1])
			return kv.MemberChange{Kind: kv.Replace, Old: old, Member: kv.Member{ID: id}}, err
		}),
		newKVMemberChange("transfer ID", "Let a voter lead", 1, memberVerb(kv.Transfer)))
	return cmd
}

func memberID(text string) (uint64, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	if err != nil || id == 0 {
		return 0, fmt.Errorf("replica %q: want its number", text)
	}
	return id, nil
}

func memberVerb(verb kv.MemberVerb) func(args []string) (kv.MemberChange, error) {
	return func(args []string) (kv.MemberChange, error) {
		id, err := memberID(args[0])
		return kv.MemberChange{Kind: verb, Member: kv.Member{ID: id}}, err
	}
}

func newKVMemberChange(use, short string, n int, parse func(args []string) (kv.MemberChange, error)) *cobra.Command {
	var k kvClient
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(n),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := parse(args)
			if err != nil {
				return UsageError(err)
			}
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				if err := c.Configure(ctx, g); err != nil {
					return err
				}
				if k.json {
					return printJSON(cmd.OutOrStdout(), map[string]uint64{"id": g.Member.ID})
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "ok")
				return err
			})
		},
	}
	k.add(cmd)
	return cmd
}

func newKVMemberList() *cobra.Command {
	var k kvClient
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the members",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				list, _, err := inspect(ctx, c)
				if err != nil {
					return err
				}
				if len(list) == 0 {
					return errors.New("no replica answers")
				}
				newest := slices.MaxFunc(list, func(a, b replica.Status) int { return int(a.Applied) - int(b.Applied) })
				if k.json {
					return printJSON(cmd.OutOrStdout(), newest.Members)
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "ID\tADDRESS\tREDIS\tVOTES\tLEADS")
				for _, m := range newest.Members {
					fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\n", m.ID, m.Addr, firstOf(m.Client, "-"), yes(!m.Learner), yes(m.ID == newest.Leader))
				}
				return w.Flush()
			})
		},
	}
	k.add(cmd)
	return cmd
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newKVVerify() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check a replica's data directory, offline",
		Long: `Read every segment of the log and every snapshot in the data directory of a replica
that does not run, check all checksums and the order of entries, and change nothing.
Exit code 3 if something is damaged.`,
		Example: "  weir kv verify /var/lib/weir/1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var found []wal.Finding
			sum, err := wal.Verify(args[0], func(f wal.Finding) { found = append(found, f) })
			if err != nil {
				return err
			}
			if err := printKVVerify(cmd, sum, found, asJSON); err != nil {
				return err
			}
			if sum.Problems > 0 {
				return Shortfall(fmt.Errorf("%d problems in %s; replace the replica (weir kv member --help)", sum.Problems, args[0]))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printKVVerify(cmd *cobra.Command, sum wal.Summary, found []wal.Finding, asJSON bool) error {
	out := cmd.OutOrStdout()
	if asJSON {
		return printJSON(out, struct {
			Summary wal.Summary   `json:"summary"`
			Files   []wal.Finding `json:"files"`
		}{sum, found})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FILE\tKIND\tENTRIES\tSTATE")
	for _, f := range found {
		state := "ok"
		switch {
		case f.Problem != "":
			state = fmt.Sprintf("at byte %d: %s", f.Offset, f.Problem)
		case f.Torn != nil:
			state = "ok, ends with a write that was cut short"
		}
		entries := "-"
		if f.Last > 0 {
			entries = fmt.Sprintf("%d to %d", f.First, f.Last)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.File, f.Kind, entries, state)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "snapshot of entry %d, log up to entry %d of term %d\n", sum.Snapshot.Index, sum.Last, sum.LastTerm)
	return err
}

package kvcmd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/inspect"
	"github.com/weirdb/weir/internal/kvd/replica"
	"github.com/weirdb/weir/internal/kvd/wal"
	"github.com/weirdb/weir/kv"
)

func newKVMember() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "member",
		Short: "List and change the members of the cluster",
		Long: `Members vote (voters) or only receive the log (learners). A replica whose disk is
lost or damaged must not come back under its number, because it no longer knows how it
voted. Replace it:

  weir kv serve --id 4 --join --peers … --data …     on the new machine
  weir kv member add 4=host:port/redisport           it catches up as a learner
  weir kv member replace 2 4                         4 votes and 2 leaves, in one step

Give the new member a number that was never used. The cluster refuses the number of a
member that has left, because that replica's votes and its old disk may still exist.`,
	}
	cmd.AddCommand(newKVMemberList(),
		newKVMemberChange("add ID=HOST:PORT[/REDISPORT]", "Add a learner", 1, func(args []string) (kv.MemberChange, error) {
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
	var asJSON cli.JSON[kvMemberID]
	var force bool
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(n),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := parse(args)
			if err != nil {
				return cli.UsageError(err)
			}
			g.Force = force
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				if err := c.Configure(ctx, g); err != nil {
					return err
				}
				return asJSON.PrintOr(cmd.OutOrStdout(), kvMemberID{g.Member.ID}, "ok")
			})
		},
	}
	k.add(cmd)
	if strings.HasPrefix(use, "remove ") || strings.HasPrefix(use, "replace ") {
		cmd.Flags().BoolVar(&force, "force", false, "also if the leader does not reach a majority of the voters that stay: the cluster then stops until they are back")
	}
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func newKVMemberList() *cobra.Command {
	var k kvClient
	var asJSON cli.JSON[[]kvMember]
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the members",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return k.with(cmd, func(ctx context.Context, c *kv.Client) error {
				cluster, err := inspect.Ask(ctx, c)
				if err != nil {
					return err
				}
				newest, err := cluster.Newest()
				if err != nil {
					return err
				}
				if asJSON.Given() {
					return asJSON.Print(cmd.OutOrStdout(), jsonMembers(newest))
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
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

// kvMemberID is the output of changes of members.
type kvMemberID struct {
	ID uint64 `json:"id"` // of the changed member
}

// kvMember is a member in JSON.
type kvMember struct {
	ID     uint64 `json:"id"`              // of the replica
	Addr   string `json:"address"`         // for replicas and native clients
	Redis  string `json:"redis,omitempty"` // address for Redis clients
	Voter  bool   `json:"voter"`           // it counts toward majorities
	Leader bool   `json:"leader"`          // it is the leader
}

func jsonMembers(s *replica.Status) []kvMember {
	list := []kvMember{}
	for _, m := range s.Members {
		list = append(list, kvMember{m.ID, m.Addr, m.Client, !m.Learner, m.ID == s.Leader})
	}
	return list
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newKVVerify() *cobra.Command {
	var asJSON cli.JSON[kvVerified]
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check a replica's data directory, offline",
		Long: `Read every segment of the log and every snapshot in the data directory of a stopped
replica, and check all checksums and the order of entries. Nothing is changed. The exit
code is 3 if something is damaged.`,
		Example: "  weir kv verify /var/lib/weir/1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var found []wal.Finding
			sum, err := wal.Verify(args[0], func(f wal.Finding) { found = append(found, f) })
			if err != nil {
				return err
			}
			if err := printKVVerify(cmd, sum, found, &asJSON); err != nil {
				return err
			}
			if sum.Problems > 0 {
				return cli.Shortfall(fmt.Errorf("%d problems in %s; replace the replica (weir kv member --help)", sum.Problems, args[0]))
			}
			return nil
		},
	}
	asJSON.Flag(cmd.Flags(), "print JSON")
	return cmd
}

// kvVerified is the output of weir kv verify --json.
type kvVerified struct {
	Summary wal.Summary   `json:"summary"` // of the whole directory
	Files   []wal.Finding `json:"files"`   // each file
}

func printKVVerify(cmd *cobra.Command, sum wal.Summary, found []wal.Finding, asJSON *cli.JSON[kvVerified]) error {
	out := cmd.OutOrStdout()
	if asJSON.Given() {
		return asJSON.Print(out, kvVerified{sum, found})
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

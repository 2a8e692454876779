package kvcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/consensus/sim"
)

// simulation has the flags of weir kv simulate.
type simulation struct {
	campaign sim.Campaign
	seed     int64
	trace    bool
	duration time.Duration
	idle     time.Duration
	json     cli.JSON[simulated]
}

// simulated is the output of weir kv simulate --json: a result with --seed, otherwise totals.
type simulated struct {
	*sim.Result
	*sim.Totals
}

func newKVSimulateCommand() *cobra.Command {
	var s simulation
	var profiles []string
	for _, p := range sim.Profiles() {
		profiles = append(profiles, fmt.Sprintf("  %-10s %s", p.Name, p.About))
	}
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate clusters with faults in virtual time and check their guarantees",
		Long: `Simulate whole clusters, with their disks, networks, clocks and clients, in one thread
in virtual time. A seed decides every fault; the same seed gives the same run.
Afterwards all answers are checked: nothing acknowledged is lost or done twice, strong
operations are linearizable, sessions get their guarantees, replicas agree.

Without --seed, seeds run one after the other until one fails. The command then prints
the command line that repeats it, and the exit code is 3. Profiles of faults:

` + strings.Join(profiles, "\n"),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.check(); err != nil {
				return cli.UsageError(err)
			}
			if s.seed >= 0 {
				return s.one(cmd.OutOrStdout())
			}
			return s.many(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.IntVar(&s.campaign.Seeds, "seeds", 1000, "how many seeds to run, none: until --duration ends")
	cli.OrNone(f, "seeds", "0")
	f.Uint64Var(&s.campaign.From, "from", 1, "first seed")
	f.Int64Var(&s.seed, "seed", -1, "run only this seed")
	f.Lookup("seed").DefValue = ""
	f.BoolVar(&s.trace, "trace", false, "with --seed: print everything that happens")
	f.DurationVar(&s.duration, "duration", 0, "stop after this long (default after all seeds)")
	f.IntSliceVar(&s.campaign.Replicas, "replicas", nil, "sizes of the clusters, taken in turn (default drawn from the seed)")
	f.StringVar(&s.campaign.Options.Preset, "preset", "", "one of "+strings.Join(consensus.PresetNames(), ", ")+" (default drawn from the seed)")
	cli.Takes(f, "preset", consensus.PresetNames()...)
	f.StringSliceVar(&s.campaign.Profiles, "profile", nil, "profiles of faults, taken in turn (default drawn from the seed)")
	cli.Takes(f, "profile", profileNames()...)
	f.DurationVar(&s.idle, "session-idle", 0, "forget a session that has not written for this long, in virtual time (default drawn from the seed)")
	f.IntVar(&s.campaign.Workers, "workers", runtime.GOMAXPROCS(0), "runs at once")
	f.Lookup("workers").DefValue = "one per processor" // so that the help is the same on every machine
	s.json.Flag(cmd.Flags(), "print JSON")
	return cmd
}

func profileNames() (names []string) {
	for _, p := range sim.Profiles() {
		names = append(names, p.Name)
	}
	return names
}

func (s *simulation) check() error {
	if s.trace && s.seed < 0 {
		return errors.New("--trace needs --seed")
	}
	if s.campaign.Seeds == 0 && s.duration == 0 && s.seed < 0 {
		return errors.New("--seeds none needs --duration")
	}
	for _, n := range s.campaign.Replicas {
		if n < 1 || n > 9 {
			return fmt.Errorf("--replicas %d: want 1 to 9", n)
		}
	}
	for _, name := range s.campaign.Profiles {
		if _, err := sim.ProfileByName(name); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
	}
	if s.campaign.Options.Preset != "" {
		if _, err := consensus.Preset(s.campaign.Options.Preset); err != nil {
			return fmt.Errorf("--preset: %w", err)
		}
	}
	if len(s.campaign.Replicas) > 1 && s.seed >= 0 || len(s.campaign.Profiles) > 1 && s.seed >= 0 {
		return errors.New("--seed takes one --replicas and one --profile")
	}
	s.campaign.Options.Idle = s.idle
	return nil
}

// one runs one seed.
func (s *simulation) one(out io.Writer) error {
	o := s.campaign.Options
	o.Seed = uint64(s.seed)
	if len(s.campaign.Replicas) == 1 {
		o.Replicas = s.campaign.Replicas[0]
	}
	if len(s.campaign.Profiles) == 1 {
		o.Profile = s.campaign.Profiles[0]
	}
	if s.trace {
		o.Trace = out
	}
	r, err := sim.Run(o)
	if err != nil {
		return fmt.Errorf("seed %d: %w", s.seed, err)
	}
	if s.json.Given() {
		if err := s.json.Print(out, simulated{Result: &r}); err != nil {
			return err
		}
	} else if err := r.Print(out); err != nil {
		return err
	}
	return verdict([]sim.Result{r})
}

// many runs seed after seed.
func (s *simulation) many(ctx context.Context, out, progress io.Writer) error {
	if s.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.duration)
		defer cancel()
	}
	started, shown := time.Now(), time.Now()
	s.campaign.Report = func(t *sim.Totals) {
		if now := time.Now(); now.Sub(shown) >= time.Second && !s.json.Given() {
			shown = now
			fmt.Fprintf(progress, "\r%d seeds, %v of virtual time, %d operations ", t.Seeds, t.Stats.Virtual.Round(time.Second), t.Stats.Operations)
		}
	}
	t, err := s.campaign.Run(ctx)
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	if s.json.Given() {
		if err := s.json.Print(out, simulated{Totals: t}); err != nil {
			return err
		}
		return verdict(t.Failures)
	}
	if shown.After(started) {
		fmt.Fprintln(progress)
	}
	if err := t.Print(out, time.Since(started)); err != nil {
		return err
	}
	return verdict(t.Failures)
}

// verdict returns an error if runs violated a guarantee.
func verdict(failures []sim.Result) error {
	if err := sim.Verdict(failures); err != nil {
		return cli.Shortfall(err)
	}
	return nil
}

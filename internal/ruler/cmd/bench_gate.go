package rulercmd

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weirdb/weir/internal/cli"
	"github.com/weirdb/weir/internal/ruler/bench"
	"github.com/weirdb/weir/internal/ruler/bench/subject"
	"github.com/weirdb/weir/internal/ruler/report"
)

// benchGate is the configuration of `weir bench gate`.
type benchGate struct {
	benchDiff
	maxRegress, noise, doubt string
	json                     cli.JSON[[]*bench.Gate]
}

func newBenchGateCommand() *cobra.Command {
	var c benchGate
	cmd := &cobra.Command{
		Use:   "gate BASE NEW",
		Short: "Fail when a result is worse than another by more than allowed",
		Long: `Compare two results as diff does, and check each figure against the largest loss that
is allowed: the part by which throughput fell, or times and costs grew. A figure fails
when it is certainly worse and its loss is larger than that; it passes when it is
better, shows no difference, or its interval holds no larger loss. Otherwise it is
undecided, and fails, unless --doubt pass is given.

--noise takes the result of an A/A run on the same machine (weir bench aa): differences
within its noise floor do not fail.

The exit code is 0 when all passed and 3 when not.`,
		Example: `  weir bench gate out/main out/branch --max-regress 10%
  weir bench gate base.json new.json --max-regress 5% --metric cpu --noise out/aa/aa-select.json`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := c.run(cmd, args[0], args[1])
			if err != nil {
				return err
			}
			return c.verdict(g)
		},
	}
	c.flags(cmd)
	c.json.Flag(cmd.Flags(), "print JSON")
	f := cmd.Flags()
	f.StringVar(&c.maxRegress, "max-regress", "10%", "the largest loss that is allowed")
	f.StringVar(&c.noise, "noise", "", "result of weir bench aa; differences within its noise floor pass")
	f.StringVar(&c.doubt, "doubt", "fail", "what an undecided figure does: fail or pass")
	cli.Takes(f, "doubt", "fail", "pass")
	return cmd
}

func (c *benchGate) run(cmd *cobra.Command, base, changed string) ([]*bench.Gate, error) {
	allowed, err := parsePart(c.maxRegress)
	if err != nil {
		return nil, cli.UsageError(fmt.Errorf("--max-regress: %w", err))
	}
	if c.doubt != "fail" && c.doubt != "pass" {
		return nil, cli.UsageError(fmt.Errorf("--doubt %q: want fail or pass", c.doubt))
	}
	var floors map[string]bench.Floor
	if c.noise != "" {
		found, err := bench.ReadPath(c.noise, subject.All()...)
		if err != nil {
			return nil, fmt.Errorf("--noise: %w", err)
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("--noise: %s: want one result, not %d", c.noise, len(found))
		}
		if floors, err = bench.NoiseFloor(found[0]); err != nil {
			return nil, fmt.Errorf("--noise: %w", err)
		}
	}
	diffs, second, err := c.compare(base, changed)
	if err != nil {
		return nil, err
	}
	var gates []*bench.Gate
	for _, d := range diffs {
		gates = append(gates, d.Judge(allowed, floors))
	}
	if c.json.Given() {
		return gates, c.json.Print(cmd.OutOrStdout(), gates)
	}
	return gates, bench.GateDocument(&second.Env, gates...).Write(cmd.OutOrStdout(), report.Format(c.format))
}

// verdict returns the exit code for the outcomes.
func (c *benchGate) verdict(gates []*bench.Gate) error {
	var short, doubtful []string
	for _, g := range gates {
		switch g.Outcome {
		case bench.GateFellShort:
			short = append(short, g.Experiment)
		case bench.GateUndecided:
			doubtful = append(doubtful, g.Experiment)
		}
	}
	switch {
	case len(short) > 0:
		return cli.Shortfall(fmt.Errorf("the gate fell short: %s", strings.Join(short, ", ")))
	case len(doubtful) > 0 && c.doubt == "fail":
		return cli.Shortfall(fmt.Errorf("the gate cannot tell: %s; measure more rounds, or let it pass with --doubt pass", strings.Join(doubtful, ", ")))
	}
	return nil
}

// parsePart parses a share: 10% or 0.1.
func parsePart(text string) (float64, error) {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || math.IsNaN(v) {
		return 0, fmt.Errorf("%q: want a part such as 10%% or 0.1", text)
	}
	if isPercent {
		v /= 100
	}
	switch {
	case v < 0:
		return 0, errors.New("a part must not be negative")
	case v > 10:
		return 0, fmt.Errorf("%q is more than ten times the whole: is a %% missing?", text)
	}
	return v, nil
}

// Package flame converts pprof profiles to sections of a report: CPU time by exclusive
// category, which adds up to the whole, with the cumulative share; memory by the line that
// allocated it; and a flame graph of either.
//
// A category says what the time was spent on, a flame graph in which functions. They agree: a
// frame has the colour of the category that its own samples count towards.
package flame

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/report"
)

// mostBytes limits the size of an unpacked profile; those of weir have a few hundred kilobytes.
const mostBytes = 256 << 20

// leastShare is the share of the whole below which the callees of one frame are merged into
// one. They are too small for a chart, and would be most of the tree's size.
const leastShare = 0.0005

// SmallFrames is the name of a frame that stands for frames too small to show.
const SmallFrames = "(smaller ones)"

// Read reads a profile in pprof's format, compressed or not.
func Read(r io.Reader) (*profile.Profile, error) {
	b, err := readBounded(r)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("unpack profile: %w", err)
		}
		if b, err = readBounded(z); err != nil {
			return nil, fmt.Errorf("unpack profile: %w", err)
		}
	}
	if len(b) == 0 {
		return nil, errors.New("read profile: it is empty")
	}
	p, err := profile.ParseUncompressed(b)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if err := p.CheckValid(); err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	return p, nil
}

func readBounded(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, mostBytes+1))
	if err == nil && len(b) > mostBytes {
		err = fmt.Errorf("it is larger than %d MiB", mostBytes>>20)
	}
	return b, err
}

// Tree adds up a profile's values of a type ("cpu", "inuse_space") to a call tree, in units of
// per. category returns what a function is for, or "" if unknown; such a frame counts towards
// its caller's category.
func Tree(p *profile.Profile, sampleType string, per float64, category func(function string) string) (*report.Frame, error) {
	at, err := valueOf(p, sampleType)
	if err != nil {
		return nil, err
	}
	root := &node{}
	for _, s := range p.Sample {
		v := s.Value[at]
		if v < 0 {
			return nil, fmt.Errorf("profile has a negative value of %s, as the difference of two has: a flame graph cannot show it", sampleType)
		}
		if v == 0 {
			continue
		}
		root.value += v
		n := root
		for _, name := range stack(s) {
			n = n.child(name)
			n.value += v
		}
	}
	if root.value == 0 {
		return nil, fmt.Errorf("profile holds no %s", sampleType)
	}
	least := int64(float64(root.value) * leastShare)
	f := root.frame("all", "", per, least, category)
	return f, nil
}

// node is a frame to which samples are being added.
type node struct {
	value    int64
	children map[string]*node
}

func (n *node) child(name string) *node {
	if n.children == nil {
		n.children = make(map[string]*node)
	}
	c := n.children[name]
	if c == nil {
		c = &node{}
		n.children[name] = c
	}
	return c
}

// frame converts a node and its children to frames, largest first.
func (n *node) frame(name, caller string, per float64, least int64, category func(string) string) *report.Frame {
	f := &report.Frame{Name: name, Value: float64(n.value) / per, Category: caller}
	if c := category(name); c != "" {
		f.Category = c
	}
	var small int64
	for child, c := range n.children {
		if c.value < least {
			small += c.value
			continue
		}
		f.Children = append(f.Children, c.frame(child, f.Category, per, least, category))
	}
	slices.SortFunc(f.Children, func(a, b *report.Frame) int {
		if a.Value != b.Value {
			if a.Value > b.Value {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	if small > 0 {
		f.Children = append(f.Children, &report.Frame{Name: SmallFrames, Value: float64(small) / per, Category: f.Category})
	}
	return f
}

// stack lists the functions of a sample from the root to the leaf, with inlined calls as their
// own frames. A function without a name is listed by its address.
func stack(s *profile.Sample) []string {
	var out []string
	for _, loc := range slices.Backward(s.Location) {
		if len(loc.Line) == 0 {
			out = append(out, fmt.Sprintf("0x%x", loc.Address))
		}
		for _, line := range slices.Backward(loc.Line) {
			if line.Function != nil {
				out = append(out, line.Function.Name)
			}
		}
	}
	return out
}

func valueOf(p *profile.Profile, name string) (int, error) {
	i := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == name })
	if i < 0 {
		return 0, fmt.Errorf("profile has no values of type %s", name)
	}
	return i, nil
}

// categorise returns a function from the name of a function to its category. The rules work on
// profiles, so each function is passed to them as a profile with one sample.
func categorise(rules *measure.Rules) func(function string) string {
	known := make(map[string]string)
	return func(function string) string {
		if c, ok := known[function]; ok {
			return c
		}
		c := ""
		b, err := rules.Breakdown(&profile.Profile{
			SampleType: []*profile.ValueType{{Type: "samples"}, {Type: "cpu"}},
			Sample: []*profile.Sample{{
				Value:    []int64{1, 1},
				Location: []*profile.Location{{Line: []profile.Line{{Function: &profile.Function{Name: function}}}}},
			}},
		})
		if err == nil && b.Categories[0].Name != measure.OtherCategory {
			c = b.Categories[0].Name
		}
		known[function] = c
		return c
	}
}

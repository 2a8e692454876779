package kvbench

import (
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Reference holds published figures of another system, to be shown next to those of a run. They
// were not measured in it, and every row that shows one says so.
type Reference struct {
	// System is the system, Source where the figures were published, and Durability what an
	// acknowledgement means there.
	System     string `yaml:"system" json:"system"`
	Source     string `yaml:"source" json:"source"`
	Durability string `yaml:"durability" json:"durability"`
	// Note is what a reader should know about them.
	Note    string            `yaml:"note" json:"note,omitempty"`
	Figures []ReferenceFigure `yaml:"figures" json:"figures"`
}

// ReferenceFigure is a published figure. Zero fields are unknown.
type ReferenceFigure struct {
	// Scenario and Case name the counterpart: a scenario of weir bench kv, and the case in it,
	// such as "150 us".
	Scenario string `yaml:"scenario" json:"scenario"`
	Case     string `yaml:"case" json:"case"`
	// System overrides that of the file, for a file with several systems.
	System    string  `yaml:"system" json:"system,omitempty"`
	Rate      float64 `yaml:"rate" json:"rate,omitempty"` // ops/s
	WeakP50   float64 `yaml:"weak_p50_ms" json:"weak_p50_ms,omitempty"`
	StrongP50 float64 `yaml:"strong_p50_ms" json:"strong_p50_ms,omitempty"`
	StrongP99 float64 `yaml:"strong_p99_ms" json:"strong_p99_ms,omitempty"`
}

// ReadReference parses a Reference from YAML or JSON.
func ReadReference(r io.Reader) (*Reference, error) {
	d := yaml.NewDecoder(r)
	d.KnownFields(true)
	var f Reference
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("read reference figures: %w", err)
	}
	if f.System == "" || f.Source == "" || f.Durability == "" {
		return nil, fmt.Errorf("read reference figures: want the system, the source of the figures, and the durability of an acknowledgement")
	}
	for i, g := range f.Figures {
		switch {
		case !slices.Contains(groups(), g.Scenario):
			return nil, fmt.Errorf("read reference figures: figure %d has scenario %q", i+1, g.Scenario)
		case !(g.Rate >= 0 && g.WeakP50 >= 0 && g.StrongP50 >= 0 && g.StrongP99 >= 0):
			return nil, fmt.Errorf("read reference figures: figure %d has an invalid number", i+1)
		}
	}
	return &f, nil
}

// of returns the figures of a group.
func (f *Reference) of(group string) []ReferenceFigure {
	if f == nil {
		return nil
	}
	var out []ReferenceFigure
	for _, g := range f.Figures {
		if g.Scenario == group {
			if g.System == "" {
				g.System = f.System
			}
			out = append(out, g)
		}
	}
	return out
}

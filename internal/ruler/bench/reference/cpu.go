package reference

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/internal/ruler/report"
	"github.com/weirdb/weir/internal/ruler/report/flame"
)

// profileAt identifies a CPU profile: the part, the case and the role.
type profileAt struct{ Part, Case, Role string }

// functionsOf lists the functions of each category of the profiles that have enough samples,
// and says why others are left out. It returns false if no profile was taken.
func (m *Measured) functionsOf(title string, at ...profileAt) (_ report.Section, any bool) {
	s := report.Section{Title: title}
	var told []suite.CPUProfile
	for _, a := range at {
		b, why := m.cpuOf(a.Part, a.Case, a.Role)
		t := m.parts[a.Part]
		any = any || t != nil && slices.ContainsFunc(t.CPU, func(c suite.CPUProfile) bool { return c.Case == a.Case && c.Role == a.Role })
		name := a.Part + ", " + a.Case
		if b == nil {
			s.Text = append(s.Text, fmt.Sprintf("%s, %s: %s.", name, a.Role, why))
			continue
		}
		told = append(told, suite.CPUProfile{Case: name, Role: a.Role, Breakdown: b})
	}
	if len(told) > 0 {
		t := suite.FunctionTable(told)
		t.Title = ""
		s.Tables = append(s.Tables, t)
	}
	return s, any
}

// flameOf draws a profile in the directory of its part. It leaves out a profile that does not
// exist, and reports one that cannot be read.
func (m *Measured) flameOf(s *report.Section, title string, at profileAt) {
	t := m.parts[at.Part]
	if t == nil {
		return
	}
	i := slices.IndexFunc(t.CPU, func(c suite.CPUProfile) bool { return c.Case == at.Case && c.Role == at.Role && c.File != "" })
	if i < 0 {
		return
	}
	ch, err := readFlame(title, filepath.Join(t.Dir, filepath.Base(t.CPU[i].File)))
	switch {
	case err == nil:
		s.Charts = append(s.Charts, ch)
	case !errors.Is(err, fs.ErrNotExist): // pages may be kept without the profiles
		s.Text = append(s.Text, fmt.Sprintf("The flame graph of %s, %s cannot be drawn: %v.", at.Case, at.Role, err))
	}
}

func readFlame(title, path string) (report.Chart, error) {
	f, err := os.Open(path)
	if err != nil {
		return report.Chart{}, err
	}
	defer f.Close()
	p, err := flame.Read(f)
	if err != nil {
		return report.Chart{}, err
	}
	return flame.Chart(title, p, measure.DefaultRules())
}

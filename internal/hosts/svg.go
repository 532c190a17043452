//go:build linux

package main

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
)

// The picture of a fault: a panel for each program, in it a lane for each host, in it a bar
// for each command. Sizes are in pixels.
const (
	picWidth  = 860
	picLeft   = 64 // where lanes begin
	picRight  = 12
	laneStep  = 22
	laneBar   = 12
	panelHead = 34
	panelFoot = 10
	picHead   = 30
	picFoot   = 46
	// picBefore and picAfter are what is drawn at most, in seconds around the fault's begin
	// and end.
	picBefore = 6
	picAfter  = 45
)

// picStyle is plain and can be read on white and on black, also by what doesn't know which
// of them it is.
const picStyle = `
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #6e7781 }
.name { font-weight: 600; fill: #6e7781 }
.small { font-size: 12px }
.lane, .tick { stroke: #8c959f; stroke-width: 1; opacity: .45 }
.fault { fill: #d4a72c; opacity: .22 }
.edge { stroke: #9a6700; stroke-width: 1; stroke-dasharray: 3 3 }
.runs { fill: #2f81c7 }
.helper { fill: #2f81c7; opacity: .55 }
.two { fill: #d1242f }
@media (prefers-color-scheme: light) {
text { fill: #424a53 } .name { fill: #1f2328 }
}
@media (prefers-color-scheme: dark) {
text { fill: #a9b4bf } .name { fill: #e6edf3 } .two { fill: #f85149 } .fault { fill: #e3b341; opacity: .2 } .edge { stroke: #e3b341 }
}
`

// picture draws what programs did in one fault.
func picture(plays []*playRecord) string {
	p := newCanvas(plays)
	fmt.Fprintf(&p.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n", picWidth, p.height, picWidth, p.height)
	fmt.Fprintf(&p.b, "<title>%s</title>\n<style>%s</style>\n", escape(plays[0].What), picStyle)
	p.fault(plays[0])
	y := picHead
	for _, play := range plays {
		p.panel(play, y)
		y += panelHead + laneStep*len(p.hosts) + panelFoot
	}
	p.axis(y)
	p.b.WriteString("</svg>\n")
	return p.b.String()
}

type canvas struct {
	b        strings.Builder
	from, to float64 // seconds
	hosts    []string
	height   int
}

func newCanvas(plays []*playRecord) *canvas {
	p := &canvas{from: -picBefore}
	for _, play := range plays {
		p.to = max(p.to, min(play.End, play.To+picAfter))
	}
	for i := range numHosts {
		p.hosts = append(p.hosts, fmt.Sprintf("h%d", i+1))
	}
	p.height = picHead + len(plays)*(panelHead+laneStep*len(p.hosts)+panelFoot) + picFoot
	return p
}

func (p *canvas) x(t float64) float64 {
	t = max(p.from, min(p.to, t))
	return picLeft + (t-p.from)/(p.to-p.from)*(picWidth-picLeft-picRight)
}

// rect draws the time from..to; an instant is still seen.
func (p *canvas) rect(class string, from, to float64, y, height int, title string) {
	if to < p.from || from > p.to {
		return
	}
	fmt.Fprintf(&p.b, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d"><title>%s</title></rect>`+"\n",
		class, p.x(from), y, max(p.x(to)-p.x(from), 1.5), height, escape(title))
}

func (p *canvas) text(class string, x float64, y int, anchor, s string) {
	fmt.Fprintf(&p.b, `<text class="%s" x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escape(s))
}

func (p *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&p.b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// fault marks its time over all panels. The fault is played on h1.
func (p *canvas) fault(play *playRecord) {
	bottom := p.height - picFoot
	if play.To >= 1 {
		p.rect("fault", 0, play.To, picHead-6, bottom-picHead+6, play.What)
	}
	p.line("edge", p.x(0), picHead-6, p.x(0), float64(bottom))
	p.text("name", p.x(0), 18, "start", faultTitle(play))
}

func faultTitle(play *playRecord) string {
	what := strings.NewReplacer("the host ", "h1 ", "its ", "h1's ", "it ", "h1 ").Replace(play.What)
	return what
}

func (p *canvas) panel(play *playRecord, y int) {
	p.text("name", 8, y+20, "start", play.Program)
	p.text("small", picWidth-picRight, y+20, "end", caption(play))
	y += panelHead
	for i, h := range p.hosts {
		lane := y + i*laneStep
		p.text("small", 8, lane+laneBar, "start", h)
		p.line("lane", picLeft, float64(lane+laneBar)+2.5, picWidth-picRight, float64(lane+laneBar)+2.5)
		for _, t := range play.Terms {
			if t.Host != h {
				continue
			}
			for _, s := range t.Spans {
				p.rect("runs", s[0], s[1], lane, laneBar, fmt.Sprintf("command on %s, %.2f s to %.2f s", h, s[0], s[1]))
			}
			for _, s := range t.Helper {
				p.rect("helper", s[0], s[1], lane+laneBar-5, 5, fmt.Sprintf("helper process on %s, until %.2f s", h, s[1]))
			}
		}
	}
	for _, two := range twoAtOnce(play.Terms) {
		i := slices.Index(p.hosts, two.host)
		p.rect("two", two.from, two.to, y+i*laneStep, laneBar, fmt.Sprintf("two at once, %.2f s to %.2f s", two.from, two.to))
	}
}

// caption is the part of cell that has room beside a program's name.
func caption(play *playRecord) string {
	var words []string
	switch v := play.Verdict; {
	case max(v.Overlap, v.TokenOverlap) > 0:
		words = append(words, fmt.Sprintf("two at once for %.1f s", max(v.Overlap, v.TokenOverlap)))
	case v.OverlapAll > 0:
		words = append(words, "a process of the old run lived on")
	}
	switch v := play.Verdict; {
	case v.TakeOver < 0:
		words = append(words, "nobody took over")
	case v.TakeOver > 0:
		words = append(words, fmt.Sprintf("next after %.1f s", v.TakeOver))
	case v.Moves == 0:
		words = append(words, "ran on")
	}
	return strings.Join(words, ", ")
}

type overlap struct {
	host     string
	from, to float64
}

// twoAtOnce is where a command ran beside another one: a bar on each of the two hosts.
func twoAtOnce(terms []termRecord) (all []overlap) {
	for i, b := range terms {
		for _, a := range terms[:i] {
			for _, s := range a.Spans {
				for _, t := range b.Spans {
					if from, to := max(s[0], t[0]), min(s[1], t[1]); from < to {
						all = append(all, overlap{a.Host, from, to}, overlap{b.Host, from, to})
					}
				}
			}
		}
	}
	return all
}

func (p *canvas) axis(y int) {
	step := 10.0
	if p.to-p.from > 120 {
		step = 20
	}
	for t := 0.0; t <= p.to; t += step {
		p.line("tick", p.x(t), float64(y), p.x(t), float64(y)+5)
		p.text("small", p.x(t), y+19, "middle", fmt.Sprintf("%.0f s", t))
	}
	x := float64(picLeft)
	for _, l := range []struct{ class, what string }{{"runs", "the command runs"}, {"helper", "a process that it started"}, {"two", "two commands at once"}} {
		fmt.Fprintf(&p.b, `<rect class="%s" x="%.1f" y="%d" width="12" height="8"/>`+"\n", l.class, x, y+27)
		p.text("small", x+17, y+36, "start", l.what)
		x += 30 + 7*float64(len(l.what))
	}
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

"""HTML pages that contain everything they show.

page.py  a page of sections; page.html is its template
svg.py   figures as SVG that follows the page's colors
"""

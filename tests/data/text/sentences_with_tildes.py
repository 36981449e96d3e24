"""Sentences, written for the tests, in languages whose letters Ã, Â and á also begin mojibake."""

PORTUGUESE = """Amanhã é domingo, e a minha irmã não vem.
Atenção: alta tensão!
As crianças já estão na estação de São João.
A manhã está fria; a lã é quente.
Você vê o avião? Não, só vejo nuvens.
Os cidadãos pedem informações à administração."""
VIETNAMESE = """Tôi đã ăn cơm rồi.
Mã số của anh là gì?
Âm nhạc làm tôi vui.
Ngã tư đường ở đâu?
Xã hội thay đổi nhanh.
Hãy nói chậm lại, tôi chưa hiểu."""
TURKISH = """Hâlâ bekliyorum, kâr yok.
İstanbul'da hava çok güzel.
Şimdi eve gidiyorum.
Rüzgâr kuzeyden esiyor.
Dükkân saat dokuzda açılıyor.
Güneş doğudan doğar."""
